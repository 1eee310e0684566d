"""Which estimate says best what a token does? Estimates against knockouts and replacements, on short texts.

Each estimate of a token's influence is compared with what the output loses if no later token attends to that token, if
its embedding is zero, or if another token that the model expects stands there. The table has Spearman's rho with the
position held, mean over the texts, and its 95 % interval.

    python analyses/estimators.py --model gemma-3-270m --texts 16 --tokens 20
"""

import argparse
from pathlib import Path

import squashlens as sl

TEXTS = [
    "The old man walked slowly down to the harbour, where his daughter had been waiting in the rain since noon.",
    "Water boils at a lower temperature on a mountain, because the air presses less on it there than at sea level.",
    "Every morning the baker opened her shop at five, lit the oven, and set the first loaves out before the sun rose.",
    "If you add two odd numbers the result is always even, but the product of two odd numbers is always odd again.",
    "The committee rejected the first plan, accepted the second with some changes, and sent the third one back to us.",
    "Three rivers meet in this valley, and the town was built where the largest bridge used to cross all of them.",
    "She wrote the letter in French, tore it up, and wrote it again in English so that her brother could read it.",
    "The engine would not start, so the driver called her friend, who came with a cable and a second battery at once.",
    "Cats sleep for most of the day, while horses sleep for only a few hours, and often they do so standing up.",
    "After the war the family moved north, sold the farm, and opened a small hotel near the railway station in town.",
    "The function returns the largest value in the list, or nothing at all if the list that was given is empty.",
    "A triangle with sides of three, four and five has a right angle, as the builders of old temples already knew.",
    "Nobody believed the boy when he said that the bridge had moved, until the engineers measured it the next day.",
    "Gold is heavier than lead, although most people who hold both for the first time would guess the opposite of it.",
    "The museum closes at six on weekdays and at eight on Fridays, but the garden beside it stays open all night.",
    "When the snow melts in April, the water runs down to the lake and covers the path along the southern shore.",
]
ESTIMATES = ["paper", "rollout", "value", "gradient", "top-logit", "all-ones", "sketch of 64, sp", "sketch of 64, Fr"]
EFFECTS = ["knockout KL", "leave-one-out KL", "expected replacement KL"]

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="tiny-prose", help="bundled name, folder or Hugging Face name (%(default)s)")
parser.add_argument("--texts", type=int, default=16, help="number of texts, up to 16 (%(default)s)")
parser.add_argument("--tokens", type=int, default=20, help="first tokens of each text that are used (%(default)s)")
parser.add_argument("--out", type=Path, default=Path("estimators"), help="folder for data and figure (%(default)s)")
args = parser.parse_args()
args.out.mkdir(parents=True, exist_ok=True)

model = sl.load(args.model)
prompts = [sl.prompts.tokenize(model, text)[0, : args.tokens].tolist() for text in TEXTS[: args.texts]]
audit = sl.audit(model, prompts, estimates=ESTIMATES + EFFECTS, n_probes=64, seed=0)
sl.results.save(audit, args.out / "estimators.nc")
sl.figures.save(sl.figures.audit(audit, reference="knockout KL"), args.out / "estimators.html")

NAMES = ["agreement", "agreement_low", "agreement_high"]
PAIRED = [f"agreement_over_jacobian{end}" for end in ("", "_low", "_high")]
for effect in EFFECTS:
    table = audit[NAMES].sel(way="partial", reference=effect).to_dataframe()[NAMES]
    print(f"\nAgreement with {effect}\n{table.round(2).to_string(na_rep='·')}")
    paired = audit[PAIRED].sel(way="partial", reference=effect).to_dataframe()[PAIRED]
    print(f"minus that of the exact Jacobian in the same text\n{paired.round(2).to_string(na_rep='·')}")
print(f"data and figure in {args.out.resolve()}")
