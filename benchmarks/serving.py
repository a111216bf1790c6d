"""A registered model behind `mlflow models serve`: requests per second, p50 and p99, compared with transformers.

Both servers are MLflow's, on loopback, with one worker, and answer the same texts with the same weights: ours the
registered pyfunc, the peer's transformers' pipeline in MLflow's own flavor for it. Clients are threads of this process
on the same machine. The rows without a server call the models in this process: the upper bound for the servers.
"""

import argparse
import contextlib
import dataclasses
import functools
import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.finetuning import fresh_model, generated_tasks
from benchmarks.harness import (
    Contestant,
    Row,
    describe_machine,
    errors_as_exit_codes,
    medians,
    program,
    render,
    working_directory,
)
from bert_pipeline.errors import BertError

TASK = "sst2"
PEER = "transformers' pipeline"
ONNX = "exported to ONNX"
UNIT = "requests/s"
WARM_UP = 10
START_TIMEOUT_SECONDS = 180.0


class ServingCase:
    """The served model and its requests."""

    def __init__(self, size: str, num_texts: int) -> None:
        """Fine-tune a model of random weights briefly, and register it in a registry of this benchmark."""
        from bert_model.finetuning.config import task_configuration
        from bert_model.finetuning.finetune import finetune
        from bert_model.finetuning.worker_pool import WorkerPool
        from bert_model.registry.client import model_name
        from bert_model.registry.operations import register
        from bert_pipeline.tasks.task import load_task_data

        self.scratch = working_directory("serving") / "home"
        store = f"sqlite:///{self.scratch / 'mlflow.db'}"
        self.environment = {
            "BERT_HOME": str(self.scratch), "MLFLOW_TRACKING_URI": store, "MLFLOW_REGISTRY_URI": store
        }  # fmt: skip
        data = load_task_data(TASK, generated_tasks())
        examples = [example.text_a for example in next(iter(data.dev.values()))]
        self.texts = tuple(itertools.islice(itertools.cycle(examples), num_texts))
        self.model, self.name = self.scratch / f"{TASK}-{size}", model_name(size, TASK)
        if not (self.model / "manifest.json").is_file():
            few = dataclasses.replace(data, train=data.train[:64], test={})
            settings = {"epochs": [1.0], "seeds": [1], "learning_rates": [5e-5], "batch_sizes": [32]}
            config = task_configuration(TASK, {**settings, "compare_random": False})
            with WorkerPool(num_workers=0) as pool:
                finetune(few, fresh_model(size), self.model, config, pool=pool, experiment="")
        with mock.patch.dict(os.environ, self.environment):
            version = register(self.model, self.name, tags={"license": "Apache-2.0"})
        self.uri = f"models:/{self.name}/{version.version}"

    def groups(self, size: int) -> list[tuple[str, ...]]:
        """Return the texts in groups of one size; a smaller last group is omitted."""
        return [self.texts[at : at + size] for at in range(0, len(self.texts) - size + 1, size)]


def peer_pipeline(case: ServingCase) -> Any:
    """Return the same weights in transformers' pipeline."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    tokenizer = AutoTokenizer.from_pretrained(case.model)
    model = AutoModelForSequenceClassification.from_pretrained(case.model)
    return pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")


def save_peer(case: ServingCase, batch_size: int) -> Path:
    """Store the pipeline in MLflow's flavor for transformers, with a batch size that fits a large request."""
    import mlflow

    path = case.scratch / f"peer-{case.model.name}-{batch_size}"
    settings = {"batch_size": batch_size}
    if not path.is_dir():
        mlflow.transformers.save_model(
            peer_pipeline(case), str(path), pip_requirements=[], input_example=[case.texts[0]], model_config=settings
        )
    return path


def connect(port: int) -> http.client.HTTPConnection:
    """Return a persistent connection to a server on loopback."""
    return http.client.HTTPConnection("127.0.0.1", port, timeout=60)


@contextlib.contextmanager
def serve(model_uri: str, log: Path, environment: Mapping[str, str]) -> Iterator[int]:
    """Run `mlflow models serve` for a block and yield its port. Raise BertError with the end of its log on failure."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", model_uri, "--env-manager", "local"]
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # MLflow calls uvicorn
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port)],
            env={**os.environ, **environment, "PATH": programs},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                end = log.read_text(encoding="utf-8", errors="replace")[-600:]
                raise BertError(f"{model_uri}: the server did not start: {end}")
            time.sleep(0.2)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(port: int) -> bool:
    with contextlib.closing(connect(port)) as connection:
        try:
            connection.request("GET", "/ping")
            return connection.getresponse().status == 200
        except OSError:
            return False


def send(connection: http.client.HTTPConnection, body: bytes) -> Any:
    """Send one request and return the predictions."""
    connection.request("POST", "/invocations", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.read()
    if response.status != 200:
        raise BertError(f"the server answered {response.status}: {answer[:300].decode(errors='replace')}")
    return json.loads(answer)["predictions"]


def latency(seconds: Sequence[float]) -> str:
    """Return the median and the 99th percentile of the seconds of requests, as text."""
    return f"p50 {1000 * np.median(seconds):.1f} ms, p99 {1000 * np.quantile(seconds, 0.99, method='higher'):.1f} ms"


def measure_clients(port: int, bodies: Sequence[bytes], clients: int, seconds: float, load: list[float]) -> float:
    """Run clients that send one request after another, whose seconds go to `load`; return the rate of all of them."""

    def client(first: int) -> list[float]:
        with contextlib.closing(connect(port)) as connection:
            numbers = itertools.count(first, clients)
            return seconds_of_calls(lambda number: send(connection, bodies[number % len(bodies)]), numbers, seconds)

    started = time.perf_counter()
    try:
        with ThreadPoolExecutor(clients) as executor:
            found = list(itertools.chain.from_iterable(executor.map(client, range(clients))))
    except (OSError, BertError) as error:
        raise BertError(f"a client failed: {error}") from error
    load += found
    return len(found) / (time.perf_counter() - started)


def seconds_of_calls(call: Callable[[int], object], numbers: Iterable[int], seconds: float) -> list[float]:
    """Call a function with one number after another for a time, once at least; return the seconds of each call."""
    found: list[float] = []
    started = time.perf_counter()
    for number in numbers:
        before = time.perf_counter()
        call(number)
        found.append(time.perf_counter() - before)
        if time.perf_counter() - started >= seconds:
            break
    return found


def measure_served(case: ServingCase, ours: int, peer: int | None, arguments: argparse.Namespace) -> list[Row]:
    """Measure requests of one text and of a batch, by one client and by several; `ours` and `peer` are ports."""
    rows = []
    for size, clients in itertools.product((1, arguments.batch), (1, arguments.clients)):
        groups = case.groups(size)
        requests: dict[str, tuple[int, list[Any]]] = {}
        requests["ours"] = (ours, [{"dataframe_records": [{"text": text} for text in texts]} for texts in groups])
        if peer is not None:
            requests[PEER] = (peer, [{"inputs": list(texts)} for texts in groups])
        loads: dict[str, list[float]] = {name: [] for name in requests}
        contestants: dict[str, Contestant] = {}
        for name, (port, documents) in requests.items():
            bodies = [json.dumps(document).encode() for document in documents]
            _warm_up(port, bodies, size)
            contestants[name] = functools.partial(
                measure_clients, port, bodies, clients, arguments.seconds, loads[name]
            )
        what = f"{_texts(size)} a request, {clients} client{'s' * (clients > 1)}"
        rows.append(_row(what, medians(contestants, arguments.rounds, what), loads))
    return rows


def _texts(size: int) -> str:
    return "one text" if size == 1 else f"{size} texts"


def _row(what: str, rates: Mapping[str, float], loads: Mapping[str, Sequence[float]]) -> Row:
    note = latency(loads["ours"]) + (f"; the peer's {latency(loads[PEER])}" if PEER in loads else "")
    return Row(what=what, unit=UNIT, ours=rates["ours"], peer=PEER, theirs=rates.get(PEER), note=note)


def _warm_up(port: int, bodies: Sequence[bytes], expected: int) -> None:
    with contextlib.closing(connect(port)) as connection:
        for body in bodies[:WARM_UP]:
            answers = send(connection, body)
            if len(answers) != expected:
                raise BertError(f"the server gave {len(answers)} answers, expected {expected}")


def onnx_model(case: ServingCase) -> Callable[[Sequence[str]], Any]:
    """Return the same weights, exported to ONNX, in onnxruntime behind our tokenizer."""
    import onnxruntime

    from bert_model.conversion.onnx import export_onnx
    from bert_model.finetuning.config import task_configuration
    from bert_model.kinds.text import encode_texts
    from bert_pipeline.vocabulary.tokenizer import Tokenizer

    path = case.scratch / f"{case.model.name}.onnx"
    export_onnx(case.model, path)
    session = onnxruntime.InferenceSession(path)
    names = [item.name for item in session.get_inputs()]
    tokenizer, max_seq_length = Tokenizer.from_directory(case.model), task_configuration(TASK).max_seq_length

    def answer(texts: Sequence[str]) -> Any:
        encoded = encode_texts([(text, None) for text in texts], tokenizer, max_seq_length)
        padded = encoded.padded(np.arange(len(texts)))
        return session.run(None, {name: padded[name].astype(np.int64) for name in names})

    return answer


def measure_here(case: ServingCase, arguments: argparse.Namespace, *, with_peer: bool) -> list[Row]:
    """Measure the same models called in this process, one request after another."""
    from bert_model.inference.predict import load_predictor

    predictor = load_predictor(TASK, [case.model])
    models: dict[str, Callable[[Sequence[str]], Any]] = {
        "ours": lambda texts: predictor.answer([{"text": text} for text in texts])
    }
    if with_peer:
        pipeline = peer_pipeline(case)
        models[PEER] = lambda texts: pipeline(list(texts), batch_size=len(texts))
    if find_spec("onnxruntime") is not None:
        models[ONNX] = onnx_model(case)
    rows = []
    for size in (1, arguments.batch):
        loads: dict[str, list[float]] = {name: [] for name in models}
        contestants = {
            name: functools.partial(measure_calls, model, case.groups(size), arguments.seconds, loads[name])
            for name, model in models.items()
        }
        what = f"{_texts(size)} a call, no server"
        rates = medians(contestants, arguments.rounds, what)
        rows.append(_row(what, rates, loads))
        if ONNX in rates:
            note = f"{latency(loads[ONNX])}; in torch {latency(loads['ours'])}"
            rows.append(
                Row(what=f"{what}, {ONNX}", unit=UNIT, ours=rates[ONNX], peer="torch", theirs=rates["ours"], note=note)
            )
    return rows


def measure_calls(
    model: Callable[[Sequence[str]], Any], groups: Sequence[Sequence[str]], seconds: float, load: list[float]
) -> float:
    """Call a model with one group of texts after another; return the calls per second."""
    for texts in groups[:WARM_UP]:
        model(texts)
    started = time.perf_counter()
    found = seconds_of_calls(lambda number: model(groups[number % len(groups)]), itertools.count(), seconds)
    load += found
    return len(found) / (time.perf_counter() - started)


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table."""
    parser = program("serving", __doc__, rounds=3, quick="one short round: shows that it runs")
    parser.add_argument("--size", default="mini", help="the model's size (default: %(default)s)")
    parser.add_argument("--clients", type=int, default=4, help="how many several clients are (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=32, help="texts of a large request (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement (default: %(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="measure ours alone")
    args = parser.parse_args(arguments)
    if args.quick:
        args.rounds, args.seconds = 1, 0.2
    with_peer = not args.no_peer and find_spec("transformers") is not None
    case = ServingCase(args.size, num_texts=256)
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(serve(case.uri, case.scratch / "ours.log", case.environment))
        peer = None
        if with_peer:
            peer_model = str(save_peer(case, args.batch))
            peer = stack.enter_context(serve(peer_model, case.scratch / "peer.log", case.environment))
        head = describe_machine(("mlflow", "torch", "transformers"))
        rows = measure_served(case, ours, peer, args)
    rows += measure_here(case, args, with_peer=with_peer)
    words = sum(len(text.split()) for text in case.texts) / len(case.texts)
    print(f"{head}\n{case.name} behind `mlflow models serve`, {words:.1f} words a text")
    print(f"medians of {args.rounds} rounds of {args.seconds:g} s; p50 and p99 over all of them\n\n{render(rows)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
