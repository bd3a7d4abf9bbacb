"""Numbers that remember what they were computed from, so that what is made for some sizes can be made for others."""
