"""Control flow: what If, Loop and Scan give, and how their bodies are run again and again."""
