"""What another model loses: a quantized, rounded or fine-tuned one beside a reference."""
