"""Published figures of others, with their sources."""

from __future__ import annotations

OVT = "Srivastava, Arora, Boneh 2024 (arXiv 2403.09603)"

STORAGE = {
    "resnet": "456 MB naively, 105 MB packed, 96 MB zipped (91 MB at b_r = 26), at batch 64",
    "gpt2": "92 MB naively, 22 MB packed, 20 MB zipped (18 MB at b_r = 26), at batch 8",
}
"""OVT, Table 2: a step's log at b_r = 32."""
CORRECTIONS = {
    "resnet": "15 ± 3 forward and 10 ± 0.6 backward at b_r = 32 (2e-6 % of the logged values), none forward below 29",
    "gpt2": "2 ± 0.7 forward and 19 ± 13 backward at b_r = 32 (9e-6 % of the logged values), none from 27 down",
}
"""OVT, Table 3."""
THRESHOLDS = {
    "conv2d (256, 1, 1)": 0.305,
    "batch norm (128, 128, 16, 16)": 0.499,
    "linear (768, 768)": 0.465,
    "layer norm (768, 1)": 0.499,
}
"""OVT, Table 4, at b_r = 32, in units of 2^-23."""
TIMES = {"resnet": (28 / 24, 31 / 28), "gpt2": (11 / 8, 13.5 / 11)}
"""OVT, Table 5: trainer / original, auditor / trainer, from seconds of one step with the Merkle tree."""
DIVERGENCE = (
    "133.2 ± 9 in the weights and 5.3 ± 0.03 in the outputs for another order of the data, 1.1 ± 0.07 and 0.26 ± 0.02 "
    "for another GPU"
)
"""OVT, Table 6, ten pairs of models."""
ORDER_BY_HARDWARE = 133.2 / 1.1
"""OVT, Table 6: distance of the weights by another order of the data / by another GPU."""
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
