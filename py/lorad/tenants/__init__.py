"""Who may ask for what, how much of it, and what they have used: tenants, their keys, limits and ledger."""
