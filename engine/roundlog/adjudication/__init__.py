"""The reference: what the contract computes, in integers and fractions. It shares nothing with the kernels
(docs/protocol.md)."""
