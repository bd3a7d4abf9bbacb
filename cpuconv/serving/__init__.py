"""Models behind inference servers: one module per server, which needs that server's package."""
