"""Open a model, verify it, and turn text into its token ids; the libraries that run models are used here and in `run`.

`loading.load` opens a model; `verify.require_sound` checks that a bridge reproduces the plain model, `applied` that
hooks take effect. `proof` keeps what was found of a model as long as its `snapshot` stays the same. `hooking` adds
hooks within a context, and `text` turns text into token ids. The other modules describe a model: its parts (`anatomy`,
`snapshot`), the tolerance of comparisons (`agreement`).
"""
