"""Who somebody is and how that was proven: certificates, codes, tokens, and the audit of what they did."""
