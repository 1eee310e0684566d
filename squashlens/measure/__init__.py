"""The instrument: a model and a prompt in, a labelled result out. One module a measurement."""
