"""The command line as a user types it."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import squashlens as sl
from squashlens.cli import main
from tests import odd

PROMPT = "110 ="


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["bound", "--attention", "foo"], "invalid choice 'foo' for argument '--attention'"),
        (["bound", "--query", "x"], "Error parsing --query"),
        (["jacobian", "--nrm", "spectral"], "Unrecognized options: --nrm"),
        (["bound", "--model"], "Missing value for argument '--model'"),
        ([], "Expected one of"),
        (["paint"], "paint"),
        (["bound", "--model", "~"], "holds no config.json"),
        (["bound", "--model", ""], "is empty"),
        (["behave", "--task", "count_ones", "--lengths", "5", "--seeds", "0"], "seeds"),
        (["behave", "--task", "count_ones", "--lengths", "5", "--seeds", "-1"], "seeds"),
        (["audit", "--content", "-1", "99", "--rungs", "rollout"], "… "),
        (["bound", "--freeze", "norms"], "freeze has no meaning with constants='paper'"),
        (["bound", "--out", "x.txt"], "End the name in .nc, .json, .csv"),
        (["bound", "--figure", "x.png"], "End the name in .html"),
        (["bound", "--out", "missing/x.nc"], "There is no folder"),
        (["report", "--out", "missing/x.html"], "There is no folder"),
        (["bound", "--prompt", "How many elephants?"], "'elephants' is not in this model's vocabulary"),
        (["bound", "--model", "tiny-gema"], "Did you mean 'tiny-gemma'?"),
        (["bound", "--prompt", ""], "The prompt is empty"),
        (["bound", "--prompt", PROMPT, "--query", "9"], "query=9 is not a position"),
        (["report", "--digits", "1"], "digits=1 are too few"),
        (["collapse", "--n", "0"], "n=0 is not a number of content tokens"),
        (["collapse", "--repeat", "1 1"], "is 2 tokens"),
        (["collapse", "--sequence", "words"], "There are no words to draw from"),
        (["collapse", "--n", "3000"], "the model's context 2048"),
        (["collapse", "--out", "x.txt"], "End the name in .nc, .json, .csv"),
        (["ablate", "--map", "x.png"], "End the name in .html"),
        (["ablate", "--kinds"], "--kinds names nothing"),
        (["ablate", "--separator", ""], "no separators to ablate"),
        (["ablate", "--from-blocks", "7"], "Use blocks 0 to 5"),
        (["prescribe", "--n", "8", "--periods", "9"], "Use shorter periods"),
        (["prescribe", "--separators"], "nothing to try"),
        (["behave", "--task", "count_one"], "There is no task 'count_one'. Near it: count_ones"),
        (["behave", "--task"], "Nothing to ask"),
        (["behave", "--task", "taught_count_repeated", "--lengths", "3", "3"], "not different values"),
        (["behave", "--task", "copy_last", "--template", "chat"], "no chat template"),
        (["readout", "--task", "taught_copy_bernoulli", "--lengths", "3"], "not numbers"),
        (["readout", "--lengths", "4", "--seeds", "3", "--fit", "1"], "fit=1: nothing can be fitted to one prompt"),
        (["readout", "--lengths", "4", "--seeds", "3", "--twins", "-1"], "twins=-1 is not a number of models"),
        (["readout", "--lengths", "4", "--seeds", "3", "--layers", "x.html", "--quiet"], "no probe to draw"),
        (
            ["behave", "--task", "count_numbered", "--joiner", " "],
            "'count_numbered' writes its items in a way of its own",
        ),
        (["readout", "--task", "taught_count_bernoulli_commas", "--joiner", ", "], "in a way of its own"),
        (["prescribe", "--n", "8", "--placements", "3"], "placements=3 give no interval"),
        (["windows", "--n", "8", "--sizes", "0"], "window=0 is not a number of tokens"),
        (["windows", "--sizes"], "no window to try"),
        (["precision", "--runs-out", "x.txt"], "End the name in .nc, .json, .csv"),
        (["precision", "--n", "8", "--lengths", "9"], "length=9 is not one of this sequence"),
    ],
)
def test_wrong_arguments_end_in_one_line_and_code_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.strip() and "it/s]" not in line]
    assert len(said) == 1
    assert complaint in said[0]


@pytest.mark.parametrize(("verb", "name"), [("bound", "path_bound"), ("jacobian", "jacobian_norm")])
@pytest.mark.parametrize("ending", ["nc", "json", "csv"])
def test_a_verb_prints_a_table_and_saves(
    verb: str, name: str, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"x.{ending}"
    main([verb, "--prompt", PROMPT, "--out", str(out), "--device", "cpu", "--quiet"])
    said = capsys.readouterr().out
    assert f"saved: {out}" in said
    assert "<bos>" in said
    if ending != "csv":
        result = sl.open_result(out)
        assert result.name == name
        assert f"{float(result.values[1]):.6g}" in said


def test_odd_values_on_the_command_line() -> None:
    assert odd.walked("tests.odd_cli", "--sample", "120", seconds=600) == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_every_odd_value_of_every_option() -> None:
    assert odd.walked("tests.odd_cli", seconds=7000) == []


BYTES = b"a\xff".decode("utf-8", "surrogateescape")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["bound", "--prompt", BYTES], r"'a\udcff' has bytes that are not UTF-8. Correct it."),
        (["behave", "--model", "1" * 500], "is longer than the name of a file can be."),
        (["bound", "--model", "~no-such-user/x"], "'~no-such-user/x' cannot be opened as a folder"),
        (["bound", "--query", "1.5"], "Error parsing --query: '1.5' is not a whole number."),
        (["bound", "--query", "1" * 5000], "the number has too many digits."),
        (["bound", "--beta1", "x"], "'x' is not a number."),
        (["audit", "--content", "1"], "['1'] cannot be read as {None}|{INT INT}."),
        (["x\x1b[2J\ny"], r"Unrecognized options: x\x1b[2J y."),
        (["ablate", "--n", "4", "--from-blocks", "1", "1", "--quiet"], "from_blocks=[1, 1] names a block twice."),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_complaints_are_plain_on_every_terminal(
    arguments: list[str], said: str, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As Python opens them: what standard error cannot write it escapes, and standard output raises.
    streams = [io.TextIOWrapper(io.BytesIO(), encoding, errors=errors) for errors in ("strict", "backslashreplace")]
    monkeypatch.setattr(sys, "stdout", streams[0])
    monkeypatch.setattr(sys, "stderr", streams[1])
    with pytest.raises(SystemExit):
        main(arguments)
    for stream in streams:
        stream.flush()
    printed, complaint = (stream.buffer.getvalue().decode() for stream in streams)  # pyright: ignore
    assert said in complaint
    assert (complaint.count("\n"), printed) == (1, "")


def test_results_are_printed_on_a_terminal_without_unicode(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "squashlens.cli", "jacobian", "--help"]  # which names β and ±
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert r"\xb1" in done.stdout


def test_a_sketch_says_how_far_it_got(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "sketch.nc"
    arguments = ["jacobian", "--prompt", PROMPT, "--norm", "frobenius", "--rtol", "0.4", "--chunk", "16", "--quiet"]
    main([*arguments, "--out", str(out)])
    assert "sketched frobenius norm" in capsys.readouterr().out
    found = sl.open_result(out)
    assert sl.provenance(found)["sketch"]["reached"] <= 0.4
    assert (found["low"] < found["high"]).all()


def test_a_certified_bound(capsys: pytest.CaptureFixture[str]) -> None:
    main(["bound", "--prompt", PROMPT, "--constants", "measured", "--edges", "exact", "--group", "6", "--freeze",
          "attention", "norms", "--quiet"])  # fmt: skip
    bound = capsys.readouterr().out
    main(["jacobian", "--prompt", PROMPT, "--freeze", "attention", "norms", "--quiet"])
    jacobian = capsys.readouterr().out
    assert "certified path bound, exact edges, attention and norms frozen" in bound
    found, truth = (float(text.splitlines()[3].split()[1]) for text in (bound, jacobian))
    assert found == pytest.approx(truth, rel=1e-5)


def test_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figure = tmp_path / "a.nc", tmp_path / "a.html"
    main(["audit", "--prompts", "110 = 2", "011 = 2", "--content", "1", "3", "--rungs", "exact", "sketch",
          "--probes", "4", "--out", str(out), "--figure", str(figure), "--quiet"])  # fmt: skip
    said, found = capsys.readouterr().out, sl.open_result(out)
    assert found["content"].values.nonzero()[0].tolist() == [1, 2, 3]
    least = found["tightness"].sel(rung="sketch of 4, certified").min().item()
    assert f"{least:.3g}" in next(line for line in said.splitlines() if "sketch of 4, certified" in line)
    assert "Plotly.newPlot" in figure.read_text(encoding="utf-8")


def test_a_figure(tmp_path: Path) -> None:
    main(["bound", "--prompt", PROMPT, "--figure", str(tmp_path / "x.html"), "--quiet"])
    assert "Plotly.newPlot" in (tmp_path / "x.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("sequence", ["repeated", "alternating", "bernoulli", "digits", "words"])
def test_collapse_of_every_kind(sequence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, figure = tmp_path / "c.nc", tmp_path / "c.html"
    words = ["--words", "car", "tree"] if sequence == "words" else []
    main(["collapse", "--sequence", sequence, *words, "--n", "30", "--suffix", "=", "--separator", ",", "--every", "4",
          "--out", str(out), "--figure", str(figure), "--quiet"])  # fmt: skip
    said = capsys.readouterr().out
    result = sl.open_result(out)
    assert result["distance"].sizes == {"layer": 7, "length": 30}
    assert {"contrast", "unrelated", "noise_floor", "head_distance"} <= set(result.data_vars)
    assert f"{float(result['distance'].values[-1, -1]):.5g}" in said
    assert "(24 of 30 lengths; --out saves all, at every layer)" in said
    assert "Plotly.newPlot" in figure.read_text(encoding="utf-8")


def test_ablate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("a.json", "a.html", "m.html")]
    main(["ablate", "--n", "9", "--kinds", "mask", "substitute", "--from-blocks", "0", "3", "--substitute", ".",
          "--out", str(files[0]), "--figure", str(files[1]), "--map", str(files[2]), "--quiet"])  # fmt: skip
    said, result = capsys.readouterr().out, sl.open_result(files[0])
    assert result["edit"].values.tolist() == ["none", "separators", "substitute"]
    assert result["from_block"].values.tolist() == [0, 3]
    assert sl.provenance(result)["substitute"] == "."
    assert "mask@0" in said
    assert f"{float(result['distance_from'].values[0, 0, -1, -1]):.5g}" in said
    assert all("Plotly.newPlot" in f.read_text(encoding="utf-8") for f in files[1:])


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["report", "--prompt", PROMPT, "--digits", "6", "--out", str(tmp_path / "r.html"), "--quiet"])
    assert f"report: {tmp_path / 'r.html'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["report", "--help"],
        ["bound", "--help"],
        ["jacobian", "--help"],
        ["collapse", "--help"],
        ["ablate", "--help"],
    ],
)
def test_help_is_complete_and_light(arguments: list[str]) -> None:
    """Quick because nothing heavy is imported; the time itself is measured by hand, not asserted."""
    probe = (
        "import sys\nfrom squashlens.cli import main\n"
        f"try: main({arguments!r})\nexcept SystemExit as stop: assert stop.code in (0, None)\n"
        "heavy = {'torch', 'transformers', 'plotly', 'xarray', 'pandas', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    print(f"{time.perf_counter() - start:.2f} s")
    assert done.returncode == 0, done.stderr
    verbs = ("report", "bound", "jacobian", "collapse", "ablate")
    for word in verbs if arguments == ["--help"] else ("--model", "--prompt", "--out"):
        assert word in done.stdout


def test_a_slip_in_a_prompt_is_told_before_anything_heavy_is_imported() -> None:
    """Under a second; the time itself is measured by hand. What is tokenized is what each verb would tokenize."""
    verbs = [
        ["bound", "--prompt", "How many onse are"], ["jacobian", "--prompt", "How many onse are"],
        ["report", "--prompt", "onse", "--out", "x.html"], ["audit", "--prompts", "110 =", "onse"],
        ["collapse", "--repeat", "onse"], ["ablate", "--separator", "onse"], ["windows", "--prompt", "onse"],
        ["prescribe", "--separators", "onse"], ["precision", "--suffix", "onse"],
        ["collapse", "--sequence", "words", "--words", "1", "onse"],
    ]  # fmt: skip
    probe = (
        "import sys\nfrom squashlens.cli import main\n"
        f"for given in {verbs!r}:\n"
        "    try: main(given)\n"
        "    except SystemExit as stop: assert stop.code == 2, given\n"
        "    else: raise SystemExit(f'{given} was taken')\n"
        "heavy = {'torch', 'transformers', 'transformer_lens', 'plotly', 'xarray'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("The word 'onse' is not in this model's vocabulary. Near it: ones") == len(verbs)


def test_the_version_and_completion(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"squashlens {sl.__version__}\n"
    for shell in ("bash", "zsh"):
        with pytest.raises(SystemExit) as stop:
            main(["--tyro-print-completion", shell])
        assert not stop.value.code
        assert "jacobian" in capsys.readouterr().out


def test_import_is_light_and_complete() -> None:
    probe = (
        "import sys, squashlens as sl\n"
        "assert 'torch' not in sys.modules and 'plotly' not in sys.modules\n"
        "assert all(getattr(sl, name) is not None for name in sl.__all__)\n"
        "assert callable(sl.report) and callable(sl.capture) and set(sl.__all__) <= set(dir(sl))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_verbs_on_mitigations(tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: object) -> None:
    """Each says what the library says, saves it and draws it."""
    form = {"prompt": "How many ones are in the following sequence?", "suffix": "="}
    ones = sl.prompts.repeated(tiny, "1", 8, **form)  # pyright: ignore[reportArgumentType]
    count = lambda digits: str(digits.count("1"))  # noqa: E731

    def said(verb: str, *arguments: str) -> str:
        main([verb, "--n", "8", "--quiet", *arguments])
        return capsys.readouterr().out

    asked = ("--answer", "count", "--draws", "3", "--lengths", "4", "8")
    files = {name: tmp_path / f"{name}.html" for name in ("prescribe", "windows", "bits", "runs")}
    printed = said(
        "prescribe", *asked, "--separators", ",", "--periods", "2", "3", "--placements", "5", "--resume",
        str(tmp_path / "j.json"), "--out", str(tmp_path / "p.nc"), "--figure", str(files["prescribe"]),
    )  # fmt: skip
    options = {"answer": count, "draws": 3, "lengths": [4, 8], "progress": False}
    expected = sl.prescribe(tiny, ones, separators=[","], every=[2, 3], placements=5, **options)  # pyright: ignore
    assert (sl.open_result(tmp_path / "p.nc")["separation"] == expected["separation"]).all()
    assert f"best: ',' after every {int(expected['best_every'])}" in printed
    printed = said(
        "windows", *asked, "--sizes", "4", "--out", str(tmp_path / "w.nc"), "--figure", str(files["windows"])
    )
    expected = sl.windows(tiny, ones, [4], **options)  # pyright: ignore
    assert (sl.open_result(tmp_path / "w.nc")["accuracy"] == expected["accuracy"]).all()
    assert "accuracy" in printed
    printed = said(
        "precision", "--lengths", "4", "8", "--runs", "bfloat16", "--figure", str(files["bits"]), "--runs-figure",
        str(files["runs"]),
    )  # fmt: skip
    assert "float8_e5m2" in printed
    assert all(path.stat().st_size > 1e6 for path in files.values())


def test_verbs_on_behaviour(tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: object) -> None:
    names = ("taught_count_bernoulli", "taught_count_repeated")
    files = {name: tmp_path / f"{name}.html" for name in ("figure", "errors", "frequencies", "readout", "layers")}
    drawn = [word for name in ("figure", "errors", "frequencies") for word in (f"--{name}", str(files[name]))]
    main([
        "behave", "--task", *names, "--lengths", "4", "60", "--seeds", "3", "--quiet", *drawn,
        "--out", str(tmp_path / "a.nc"), "--resume", str(tmp_path / "j.json"),
    ])  # fmt: skip
    printed = capsys.readouterr().out
    for name, seeds in zip(names, (3, 1), strict=True):
        task = sl.tasks.find(name)
        expected = sl.behave(tiny, task, lengths=[4, 60], seeds=seeds, progress=False)  # pyright: ignore
        kept = sl.open_result(tmp_path / f"a.{name}.nc")
        assert (kept["answer"] == expected["answer"]).all()
        assert (tmp_path / f"j.{name}.json").exists()
        assert f"{name}: share answered rightly" in printed
    main([
        "readout", "--lengths", "4", "60", "--seeds", "24", "--fit", "8", "--twins", "2", "--quiet", "--out",
        str(tmp_path / "r.nc"), "--figure", str(files["readout"]), "--layers", str(files["layers"]),
    ])  # fmt: skip
    printed = capsys.readouterr().out
    assert "read out" in printed
    assert "4 items: 24 of 24 answers are right." in printed
    assert sl.open_result(tmp_path / "r.nc")["r2"].dims == ("layer", "length")
    assert all(path.stat().st_size > 1e6 for path in files.values())
    main(["tasks"])
    listed = capsys.readouterr().out
    assert all(f"{name} (" in listed for name in sl.tasks.names())


def test_readout_in_any_order_of_lengths_and_with_smaller_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny: object
) -> None:
    files = {name: tmp_path / name for name in ("r.nc", "r.html", "layers.html")}
    main([
        "readout", "--lengths", "24", "12", "--seeds", "24", "--fit", "6", "--twins", "0", "--quiet",
        "--out", str(files["r.nc"]), "--figure", str(files["r.html"]), "--layers", str(files["layers.html"]),
    ])  # fmt: skip
    assert all(path.exists() for path in files.values())
    kept = sl.open_result(files["r.nc"])
    task = sl.tasks.find("taught_count_bernoulli")
    how = {"lengths": [12, 24], "seeds": 24, "fit": 6, "twins": 0, "progress": False}
    expected = sl.collapse_vs_readout(tiny, task, **how)  # pyright: ignore
    assert kept["length"].values.tolist() == [12, 24]
    assert (kept["r2_y"] == expected["r2_y"]).all()
    printed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert printed.index("12") < printed.index("24")


def test_behave_says_where_prompts_are_fewer_than_answers(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["taught_last_alternating", "taught_count_repeated"]
    main(["behave", "--task", *names, "--lengths", "76", "4", "--seeds", "5", "--quiet"])
    printed = capsys.readouterr().out
    assert printed.count("prompts") == 1  # one answer to one prompt needs no words
    assert "5 answers at each length, to fewer different prompts: 2 at 4, 2 at 76\n" in printed


def test_a_reader_that_has_had_enough_is_no_error(tmp_path: Path) -> None:
    said = tmp_path / "said"
    command = f"{sys.executable} -m squashlens.cli tasks 2>{said} | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout.startswith("copy_last")
    assert not said.read_text()
