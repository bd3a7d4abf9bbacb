"""One convolution, from arguments to a plan that runs."""
