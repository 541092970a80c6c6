"""What a caller gives, checked: scores, k, temperature, mask and costs as rows."""
