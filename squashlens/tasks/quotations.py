"""Prompts quoted verbatim, with their typing errors, from Barbero et al. 2024, figure 5 and appendix C.1.

`{sequence}` replaces *seq* of the paper.
"""

# Figure 5.
COUNT = "How many ones are in the following sequences?"
COPY = "Can you copy the following number?"

# Appendix C.1, counting.
SUM = (
    "Please perform the following sum: {sequence}. Please give the answer on the final line exactly as "
    "'The final answer to your maths question is: xxxx', where 'xxxx' is your answer.."
)
ONES = (
    "Please count the number of ones in the following sequence:{sequence}. Please give the answer on the final line "
    "exactly as 'The final answer to your maths question is: xxxx', where 'xxxx is your answer."
)
WORD = (
    "Please count the number of times 'car' appears in the following sentence: '{sequence}'. Please give the answer "
    "on the final line exactly as 'The final answer to your maths question is: xxxx', where 'xxxx' is your answer."
)
COUNT_ANSWER = "The final answer to your maths question is:"

# Appendix C.1, chain of thought: the instruction, and the examples for the sum.
STEPS = "Let's think step by step, showing me your reasoning."
EXAMPLES = "Here are a few examples:"
SUM_EXAMPLES = """We divide the sum into groups of 5. (1 + 1 + 1 + 1 + 1) + (1 + 1 + 1 + 1 + 1) + 1 + 1

The answer is then 2 * 5 + 2 = 12

The final answer to your maths question is: 12

Please perform the following sum: 1 + 1 + 1 + 1 + 1 + 1

We divide the sum into groups of 5.

(1 + 1 + 1 + 1 + 1) + 1

The answer is then 1 * 5 + 1 = 6

The final answer to your maths question is: 6"""

# Appendix C.1, copying, and the hint of figure 2 (b).
LAST = (
    "Consider the following sequence: {sequence}. What is the last digit in this sequence? "
    "Please answer exactly as 'The answer to your question is: <ANSWER>'"
)
LAST_ANSWER = "The answer to your question is:"
HINT = "*Hint* It's not necessarily a 1, check carefully"
