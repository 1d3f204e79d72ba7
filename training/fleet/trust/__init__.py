"""Identities and their proof: certificates, codes, tokens, and the audit of what was done."""
