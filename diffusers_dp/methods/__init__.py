"""Every method: its flags, its checks, what it asks, and what is proven of it. No torch."""
