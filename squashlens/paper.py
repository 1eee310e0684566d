"""What is taken from the paper as data: its prompts, verbatim, from Barbero et al. 2024, figure 5."""

COUNT = "How many ones are in the following sequences?"
COPY = "Can you copy the following number?"
