"""What operators see of a running server: metrics, log lines, traces."""
