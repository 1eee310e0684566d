"""Turn text into token ids: prompts in any form, the start of a prompt, tokenizers, chat templates."""
