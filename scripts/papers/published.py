"""What others have published, with where it is said. None: a figure that we know to exist and could not read ourselves;
it is left open rather than guessed."""

from __future__ import annotations

OVT = "Srivastava, Arora, Boneh 2024 (arXiv 2403.09603)"

STORAGE = {"resnet": "91-105 MB (batch 64)", "gpt2": "18-22 MB"}
"""OVT, Table 2: a step's log with five trits a byte, b_r = 26 and 32."""
ENCODING_SAVES = "77 %"
"""OVT, Table 2: of the naive encoding, by packing."""
CORRECTIONS = "below 0.01 % of all outputs at b_r = 32"
"""OVT, Table 3; its cells are counts by model and b_r."""
THRESHOLDS = {"conv2d": "0.295 (the prototype's example)", "batch norm": "0.4 (the prototype's example)"}
"""OVT, Table 4, by the example in the published prototype (round_utils.py)."""
TIMES = {"resnet": ("1.17", "1.11-1.23"), "gpt2": ("1.38", "1.11-1.23")}
"""OVT, Table 5: trainer / original, auditor / trainer."""
PROOF_SYSTEMS = {
    "logistic": (
        "72 s and 350 MB an epoch (OVT, section 6.2, after a summary of the authors' talk); prover 10 minutes online "
        "and an hour offline, for 262,144 rows of 1,024 (Garg et al. 2023, IACR ePrint 2023/1345, abstract)"
    ),
    "vgg11": (
        "22 minutes a step of batch 16, 10 million parameters (Abbaszadeh et al. 2024, Kaizen, IACR ePrint 2024/162, "
        "abstract; OVT, section 6.2, quotes the same); a later version says 15 minutes, with a proof of 1.63 MB"
    ),
}
UNREAD = "not in the texts that we could read"
