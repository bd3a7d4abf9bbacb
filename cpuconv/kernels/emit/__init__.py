"""What emitters of several rooms are made of."""
