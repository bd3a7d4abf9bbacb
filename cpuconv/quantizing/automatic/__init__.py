"""int8 as a precision of `precision="auto"`."""
