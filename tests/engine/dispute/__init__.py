"""What a party opens of a disputed step."""
