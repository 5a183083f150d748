"""RMSNorm and the residual add before it."""
