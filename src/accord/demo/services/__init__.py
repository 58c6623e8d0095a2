"""Two small services of the demo street: a shed that lends tools, and one that reminds of them."""
