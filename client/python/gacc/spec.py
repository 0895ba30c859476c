# SPDX-License-Identifier: Apache-2.0
"""A job's specification from a dictionary, a file or a message, with the keys and defaults of job files (client/lib/spec_keys.c).

Keys are those of a job file's `spec` section and those of gacc.v1.JobSpec; enums are written short ("adamw"), times as seconds or "90s".
"""
from __future__ import annotations

import copy
import json
import os
import re
from typing import Any, Iterable, Mapping, Optional

from .dtypes import number_of
from .errors import GaccError
from .messages import types

DEFAULTS = {"ranks": 1, "micro_size": 1, "reduction": "weighted_mean", "grad_of": "mean", "uneven": "flush", "accumulate": "sum",
            "accumulate_dtype": "f32", "master": "f32", "nonfinite": "skip_step", "loss_scale": 1.0, "ordering": "canonical", "slots_per_rank": 2,
            "device": "host", "slots_on": "host", "untouched": "zero", "sharding": "none",
            "stall_warn_ms": 60000, "stall_abort_ms": 600000, "abandoned_ms": 600000, "launch": "external"}
ADAM = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
OPTIMIZERS = {"client": {}, "sgd": {"lr": 1e-3}, "adam": ADAM, "adamw": {**ADAM, "weight_decay": 1e-2},
              "lamb": {**ADAM, "weight_decay": 1e-2, "eps": 1e-6}}  # PyTorch's
UNITS = {"ms": 1, "s": 1000, "m": 60000, "h": 3600000}
TIMEOUTS = {"stall_warn": "stall_warn_ms", "stall_abort": "stall_abort_ms", "abandoned": "abandoned_ms"}
LAUNCH = {"command": "command", "working_dir": "working_dir", "environment": "environment", "max_restarts": "max_restarts", "grace": "grace_ms",
          "no_torch_env": "no_torch_env"}


def _bad(what: str) -> GaccError:
    return GaccError(what, reason="INVALID_SPEC", hint="all keys of a job file: gaccctl config schema")


def spec_of(given: Any, default_ranks: Optional[int] = None, **more: Any) -> Any:
    """A gacc.v1.JobSpec. `given`: one, a dictionary, or the path of a job file in YAML or JSON. `more`: keys that win over its own. `default_ranks`: used
    if it does not say how many."""
    known = types()
    if isinstance(given, known.JobSpec):
        spec = known.JobSpec()
        spec.CopyFrom(given)
        spec.ranks = more.pop("ranks", 0) or spec.ranks or default_ranks or 1
        return spec
    if isinstance(given, (str, os.PathLike)):
        given = _read(os.fspath(given))
    if not isinstance(given, Mapping):
        raise _bad(f"a specification is a dictionary, a path or a JobSpec, not {type(given).__name__}")
    flat = {**_flat(given), **more}
    if default_ranks is not None:
        flat.setdefault("ranks", default_ranks)
    return _message(known.JobSpec.DESCRIPTOR, _wire(flat), "")


def _read(path: str) -> Any:
    try:
        with open(path, encoding="utf-8") as f:
            text = f.read()
    except OSError as e:
        raise GaccError(f"{path}: {e.strerror}", reason="IO_ERROR") from None
    if path.endswith(".json"):
        return json.loads(text)
    try:
        import yaml
    except ImportError:
        raise GaccError(f"{path}: reading YAML needs PyYAML", reason="NOT_SUPPORTED", hint="pip install pyyaml, or give a dictionary") from None
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise _bad(f"{path}: {e}") from None


def _flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """A job file's sections, or the keys of `spec` alone."""
    if "spec" not in given:
        return copy.deepcopy(dict(given))
    strange = set(given) - {"api_version", "kind", "metadata", "spec"}
    if strange:
        raise _bad(f"no key {sorted(strange)[0]!r} beside spec")
    return {**copy.deepcopy(dict(given["spec"])), **copy.deepcopy(dict(given.get("metadata") or {}))}


def _ms(value: Any) -> int:
    """Milliseconds of seconds, or of "90s", "10m", "500ms"."""
    if isinstance(value, str):
        parts = re.fullmatch(r"([0-9.]+)(ms|s|m|h)", value.strip())
        if not parts:
            raise _bad(f"{value!r} is no time: 500ms, 90s, 10m, 1h")
        return round(float(parts[1]) * UNITS[parts[2]])
    return round(float(value) * 1000)


def _bytes(value: Any) -> int:
    if isinstance(value, str):
        parts = re.fullmatch(r"([0-9.]+)\s*([KMGT]?)(i?)B?", value.strip())
        if not parts:
            raise _bad(f"{value!r} is no size: 64MiB, 2GiB")
        return int(float(parts[1]) * (1024 if parts[3] or not parts[2] else 1000) ** " KMGT".index(parts[2] or " "))
    return int(value)


def _section(flat: dict[str, Any], name: str, keys: Mapping[str, str], out: dict[str, Any]) -> None:
    for key, value in (flat.pop(name, None) or {}).items():
        if key not in keys:
            raise _bad(f"no key {key!r} in {name}")
        out[keys[key]] = _ms(value) if keys[key].endswith("_ms") else value


def _labels(value: Any) -> Any:
    return [{"key": str(k), "value": str(v)} for k, v in value.items()] if isinstance(value, Mapping) else value


def _wire(flat: dict[str, Any]) -> dict[str, Any]:
    """The keys of gacc.v1.JobSpec, with all defaults."""
    if "gradient_accumulation_steps" in flat:
        flat["micro_size"] = flat.pop("gradient_accumulation_steps")
    if "deterministic" in flat:
        flat["ordering"] = "canonical" if flat.pop("deterministic") else "arrival"
    _section(flat, "timeouts", TIMEOUTS, flat)
    if isinstance(flat.get("launch"), Mapping):
        launch: dict[str, Any] = {}
        mode = dict(flat["launch"]).pop("mode", "external")
        _section({"launch": {k: v for k, v in flat["launch"].items() if k != "mode"}}, "launch", LAUNCH, launch)
        flat["launch"] = mode
        if launch:
            flat["launch_command"] = {**launch, "environment": _labels(launch.get("environment") or [])}
    _section(flat, "output", {"log_dir": "log_dir"}, flat)
    if "host_memory" in flat:
        flat["host_memory"] = _bytes(flat["host_memory"])
    if "labels" in flat:
        flat["labels"] = _labels(flat["labels"])
    flat["optimizer"] = _optimizer(flat.get("optimizer") or {})
    flat["schedule"] = _schedule(flat.get("schedule") or {})
    flat["param_groups"] = [_group(dict(g)) for g in flat.get("param_groups") or []]
    if "tensors" in flat:
        flat["tensors"] = [{"dtype": "f32", **t} if isinstance(t, Mapping) else t for t in flat["tensors"]]
    return {**DEFAULTS, **flat}


def _optimizer(given: Any) -> dict[str, Any]:
    given = {"type": given} if isinstance(given, str) else dict(given)
    if "betas" in given:
        given["beta1"], given["beta2"] = given.pop("betas")
    kind = str(given.get("type", "")).lower()
    if kind not in OPTIMIZERS:
        raise _bad(f"optimizer.type is {given.get('type')!r}: client, sgd, adam, adamw or lamb")
    return {**OPTIMIZERS[kind], **given, "type": kind}


def _schedule(given: Any) -> dict[str, Any]:
    given = {"type": "constant", **given}
    if given["type"] == "step":
        given.setdefault("gamma", 0.1)
    if given.get("warmup_steps"):
        given.setdefault("warmup_start_factor", 1 / 3)
    return dict(given)


def keys_of_optimizer(given: Mapping[str, Any]) -> list[str]:
    """Which fields of a JobSpec these settings of an optimizer are; but for type and lr."""
    fields = []
    for key in given:
        if key not in ("type", "lr"):
            fields += ["optimizer.beta1", "optimizer.beta2"] if key == "betas" else ["optimizer." + key]
    return fields


def _said(field: Any, value: Any) -> str:
    """As a specification says it."""
    if field is not None and field.enum_type and isinstance(value, int):
        return str(field.enum_type.values_by_number[value].name[len(field.enum_type.values[0].name) - len("UNSPECIFIED"):].lower())
    return str(value).strip().replace("\n", " ") or "none"


def agree(mine: Any, job: Any, fields: Iterable[str]) -> None:
    """Raises if the job, which was there, is another one than the arguments say, of which `mine` is made."""
    for field in fields:
        *inside, last = field.split(".")
        pair = [mine, job]
        for part in inside:
            pair = [getattr(m, part) for m in pair]
        of = pair[0].DESCRIPTOR.fields_by_name.get(last)
        values = [getattr(m, last, None) for m in pair]
        if values[0] != values[1]:
            said = [_said(of, v) for v in values]
            raise GaccError(f"{field} is {said[0]} here and {said[1]} in the job {job.name}, which was there already", reason="SPEC_MISMATCH",
                            hint="end that job, give this one another name, or leave the argument out")


def _group(given: dict[str, Any]) -> dict[str, Any]:
    given.setdefault("lr_scale", 1.0)
    if given.get("weight_decay") is not None:
        given["override_weight_decay"] = True
    return {k: v for k, v in given.items() if v is not None}


def _message(descriptor: Any, fields: Mapping[str, Any], where: str) -> Any:
    """A message of this type; enums by their short names, unknown keys named."""
    out = {}
    for name, value in fields.items():
        field = descriptor.fields_by_name.get(name)
        if field is None:
            raise _bad(f"no key {where + str(name)!r}")
        out[name] = _value(field, value, where + name)
    try:
        return types().of(descriptor)(**out)
    except (TypeError, ValueError) as e:
        raise _bad(f"{where or 'spec'}: {e}") from None


def _value(field: Any, value: Any, where: str) -> Any:
    if field.message_type:
        if isinstance(value, (list, tuple)):
            return [_message(field.message_type, v, f"{where}.") if isinstance(v, Mapping) else v for v in value]
        return _message(field.message_type, value, f"{where}.") if isinstance(value, Mapping) else value
    if field.enum_type and field.enum_type.name == "DataType":
        return number_of(value)
    if field.enum_type and isinstance(value, str):
        prefix = field.enum_type.values[0].name[:-len("UNSPECIFIED")]
        found = field.enum_type.values_by_name.get(prefix + value.upper())
        if found is None:
            names = ", ".join(v.name[len(prefix):].lower() for v in field.enum_type.values[1:])
            raise _bad(f"{where}: no {value!r}: {names}")
        return found.number
    return value
