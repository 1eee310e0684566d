"""The patient: what is loaded, how it is proved right, how it is hooked. Only this wing knows the libraries
that run models."""
