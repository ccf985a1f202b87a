"""The side of pytest that all tiers share: settings, cases and the session around them."""
