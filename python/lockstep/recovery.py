"""A rank that dies is replaced, and the others go on: `lockrun --max-replacements N`."""

import contextlib
import copy
import gc
import hashlib
import logging
import pickle
import weakref

import torch
import torch.distributed as dist

from lockstep import _C
from lockstep.groups import cpu_backend

_MOST_KEPT = 1 << 20  # bytes of a thing that is copied in every step
_LONGEST_START = 600.0  # seconds: a new process may read its data for as long

# What a rank has, where all of them meet after one was replaced.
_BEFORE, _AFTER, _NEITHER = "before", "after", "neither"  # the step; neither: weights are written, and the step has not ended


def _decide(reports):
    """(donor, steps): the rank whose state all get, None if nobody has one, and how many steps have ended then."""
    old = [report for report in reports if not report["new"]]
    steps = max((report["steps"] + (report["holds"] == _AFTER) for report in old), default=0)
    return next((rank for rank, report in enumerate(reports) if _position(report) == steps), None), steps


def _position(report):
    if report["new"] or report["holds"] == _NEITHER:
        return None
    return report["steps"] + (report["holds"] == _AFTER)


def _add_to_hash(digest, value):
    """The same on all ranks that have the same value."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy())
    elif isinstance(value, dict):
        for key in sorted(value, key=repr):
            digest.update(repr(key).encode())
            _add_to_hash(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"[{len(value)}]".encode())
        for each in value:
            _add_to_hash(digest, each)
    elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        digest.update(repr(value).encode())
    else:
        digest.update(type(value).__qualname__.encode())  # it may print as its address


def _tensors_of(module):
    """Parameters and buffers, each once."""
    return [*module.named_parameters(), *module.named_buffers()]


def _takes_own_statistics(module):
    return isinstance(module, torch.nn.modules.batchnorm._NormBase) and not isinstance(module, torch.nn.SyncBatchNorm)


_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def _own_statistics(module):
    """(name, buffer) of the running statistics that each rank takes of its own batches."""
    return [
        (f"{child_name}.{name}".lstrip("."), buffer)
        for child_name, child in module.named_modules()
        if _takes_own_statistics(child)
        for name, buffer in child.named_buffers(recurse=False)
        if name in _STATISTICS
    ]


def _place_of(tensor):
    return tensor.data_ptr(), tensor.nbytes, tensor.is_cpu, tensor.is_contiguous()


def _wrapped_modules():
    """Every DistributedDataParallel of this process."""
    # isinstance() would look at each object's __class__, which warns for some.
    return [each for each in gc.get_objects() if issubclass(type(each), torch.nn.parallel.DistributedDataParallel)]


class _Items:
    """What belongs to the state of a training."""

    def __init__(self, named):
        self.modules, self.optimizers, self.things = {}, {}, {}
        for name, thing in named.items():
            if any(thing is other for kind in (self.modules, self.optimizers, self.things) for other in kind.values()):
                raise ValueError(f'Recovery: "{name}" is named a second time; name each thing once')
            if isinstance(thing, torch.nn.Module):
                self.modules[name] = thing
            elif isinstance(thing, torch.optim.Optimizer):
                self.optimizers[name] = thing
            elif callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None)):
                self.things[name] = thing
            else:
                raise TypeError(
                    f'Recovery: "{name}" is a {type(thing).__qualname__}, which has no state_dict() and load_state_dict(); '
                    "name modules, optimizers and things that have them"
                )
        self._parameters = {parameter: None for module in self.modules.values() for parameter in module.parameters()}
        self._children = list({child: None for module in self.modules.values() for child in module.modules()})
        self.statistics = self._find_statistics()
        self._statistics_at = [_place_of(statistic) for statistic in self.statistics]
        self._is_writing = False
        for optimizer in self.optimizers.values():
            optimizer.register_step_pre_hook(self._note_writing)
        self._kept_buffers, self._kept_options, self._kept_things, self._kept_probe = [], [], {}, 0

    def _note_writing(self, *_):
        self._is_writing = True

    def _find_statistics(self):
        return list(
            {
                child._buffers[name]: None
                for child in self._children
                if _takes_own_statistics(child)
                for name in _STATISTICS
                if child._buffers.get(name) is not None
            }
        )

    def have_statistics_moved(self):
        """Are running statistics of this rank's own batches elsewhere than at first? module.to() and the like make new tensors."""
        now = self._find_statistics()
        return (
            len(now) != len(self.statistics)
            or any(one is not other for one, other in zip(now, self.statistics))
            or [_place_of(statistic) for statistic in now] != self._statistics_at
        )

    def names(self):
        return [*self.modules, *self.optimizers, *self.things]

    def problem(self, wrapped):
        """Why this rank could not hand it over, or get it; empty: it can. wrapped: every DistributedDataParallel."""
        for name, module in self.modules.items():
            for child_name, child in module.named_modules():
                if type(child).__name__ == "FullyShardedDataParallel":
                    return f"{name}: {child_name or type(child).__name__} is divided among the ranks"
            for buffer_name, buffer in _own_statistics(module):
                if not buffer.is_cpu or not buffer.is_contiguous():
                    return f"{name}: {buffer_name}, a running statistic of each rank's own batches, is not contiguous memory of the CPU"
            for parameter_name, parameter in module.named_parameters():
                if type(parameter.data).__name__ == "DTensor":
                    return f"{name}: {parameter_name} is divided among the ranks"
                if hasattr(parameter, "_in_backward_optimizers"):
                    return f"{name}: {parameter_name} has an optimizer that runs in backward"
        for name, optimizer in self.optimizers.items():
            if any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(optimizer).__mro__):
                return f"{name} is divided among the ranks, and the part of a rank that dies is lost"
        for name, thing in self.things.items():
            try:
                size = len(pickle.dumps(thing.state_dict()))
            except Exception as error:  # noqa: BLE001  (whatever the thing raises)
                return f"{name}: its state cannot be pickled: {error}"
            if size > _MOST_KEPT:
                return f"{name} has a state of {size} bytes, and at most {_MOST_KEPT} are copied in every step"
        optimized = {parameter: None for optimizer in self.optimizers.values() for group in optimizer.param_groups for parameter in group["params"]}
        for name, module in self.modules.items():
            for parameter_name, parameter in module.named_parameters():
                if parameter.requires_grad and parameter not in optimized:
                    return (
                        f"parameter {parameter_name} of {name} is in no optimizer that Recovery was given: name its optimizer, or call "
                        "requires_grad_(False) if nothing trains it, as with an AveragedModel"
                    )
        for ddp in wrapped:
            if any(parameter not in self._parameters for parameter in ddp.parameters()):
                return "a DistributedDataParallel wraps a module that Recovery was not given"
            if ddp.mixed_precision is not None:
                return "a DistributedDataParallel has mixed precision"
            for hook, _ in ddp._comm_hooks:
                if not _is_stateless(hook):
                    name = getattr(hook, "__qualname__", type(hook).__qualname__)
                    return f"the communication hook {name} of a DistributedDataParallel may have a state of each rank's own"
        return ""

    def drop_gradients(self):
        for parameter in self._parameters:
            parameter.grad = None
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=True)

    def _probe(self):
        """Of the weights: each one's version, and some of its elements, since writes through .data and .numpy() change no version."""
        return _C.probe(list(self._parameters))

    def keep(self):
        """What restore() returns to is what holds now."""
        kept = {}
        self._kept_buffers = []
        for child in self._children:
            for name, buffer in child._buffers.items():
                if buffer is not None and buffer not in kept:
                    kept[buffer] = buffer.detach().clone()
                self._kept_buffers.append((child._buffers, name, buffer, kept.get(buffer)))
        self._kept_options = [
            [{key: copy.deepcopy(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
            for optimizer in self.optimizers.values()
        ]
        self._kept_things = {name: copy.deepcopy(thing.state_dict()) for name, thing in self.things.items()}
        self._is_writing, self._kept_probe = False, self._probe()

    def are_written(self):
        """Have weights been written since keep()?"""
        return self._is_writing or self._probe() != self._kept_probe

    def restore(self):
        """Buffers, options of optimizers, and what is neither model nor optimizer."""
        with torch.no_grad():
            for buffers, name, buffer, values in self._kept_buffers:
                if buffers[name] is not buffer:  # a forward has put another tensor in its place
                    buffers[name] = buffer
                if buffer is not None:
                    buffer.copy_(values)
        for optimizer, kept_groups in zip(self.optimizers.values(), self._kept_options):
            for group, kept in zip(optimizer.param_groups, kept_groups):
                group.update(copy.deepcopy(kept))
        for name, kept in self._kept_things.items():
            self.things[name].load_state_dict(copy.deepcopy(kept))

    def hashes(self):
        """In the order of names()."""
        hashes = []
        for module in self.modules.values():
            hashes.append(self._hash(dict(self._common_tensors_of(module))))
        for thing in (*self.optimizers.values(), *self.things.values()):
            hashes.append(self._hash(thing.state_dict()))
        return hashes

    def _common_tensors_of(self, module):
        return [(name, tensor) for name, tensor in _tensors_of(module) if not any(tensor is own for own in self.statistics)]

    @staticmethod
    def _hash(value):
        digest = hashlib.blake2b(digest_size=16)
        _add_to_hash(digest, value)
        return digest.hexdigest()

    def hand_over(self, donor, needs_it):
        """All ranks get what rank `donor` has, except statistics of a rank's own batches. Called by all ranks."""
        with torch.no_grad():
            for module in self.modules.values():
                for _, tensor in self._common_tensors_of(module):
                    values = tensor.detach().contiguous()
                    dist.broadcast(values, donor)
                    if values.data_ptr() != tensor.data_ptr():
                        tensor.copy_(values)
        for thing in (*self.optimizers.values(), *self.things.values()):
            state = [thing.state_dict() if dist.get_rank() == donor else None]
            dist.broadcast_object_list(state, donor)
            if needs_it:
                thing.load_state_dict(state[0])


class Recovery:
    """Names what belongs to the state of a training. Under `lockrun --max-replacements N` a rank that dies inside of
    step(recovery, ...), or between two of them, is replaced by a new process. It gets the state from a rank that lives, the step in
    which it died is repeated, and the weights end with the bits of a training without a death.

        recovery = lockstep.Recovery({"model": ddp, "optimizer": optimizer, "scheduler": scheduler})
        while recovery.steps() < 1000:
            def body():
                optimizer.zero_grad()
                loss_of(ddp, batch_of(recovery.steps())).backward()
                optimizer.step()
            lockstep.step(recovery, body)
        recovery.close()

    state: modules, optimizers, and anything with state_dict() and load_state_dict() that is the same on all ranks, by name. All
    ranks make it when models, wrappers and optimizers are there; it blocks until they are. From then on what the program does
    depends on the state, on steps() and on the rank, and on nothing else. step() seeds torch's generator from (seed, rank, step).

    Without --max-replacements, and on other backends, step() only seeds, and a rank that dies ends the job. If something cannot be
    handed over, a warning says so once, and it is the same.
    """

    _was_made = False  # one that replaces ranks
    _that_replaces = None  # that one, or a reference to nothing

    def __init__(self, state, seed=0):
        self._items = _Items(dict(state))
        self._seed, self._steps, self._compared_at = int(seed) % 2**64, 0, 0
        self._is_new = self._is_asked = False
        self._wrapped = []
        self._healing = None
        if not dist.is_initialized() or cpu_backend() is None:
            return
        healing = _C.make_healing()
        if healing is None:
            if Recovery._was_made:
                _warn("Recovery: only the first one of a program replaces ranks that die")
            return
        Recovery._was_made = True
        Recovery._that_replaces = weakref.ref(self)
        wrapped = _wrapped_modules()
        problem = self._items.problem(wrapped)
        if healing.is_new():
            if problem:
                raise RuntimeError(f"Recovery: this process cannot take the place of another one: {problem}")
            self._healing, self._wrapped, self._is_new = healing, wrapped, True
            self._keep_own()
            self._heal({"new": True, "steps": 0, "holds": _BEFORE})
            healing.set_healable(True)
            return
        of_notes = healing.end_recording()
        for rank, text in enumerate(_all_gather(problem or of_notes)):
            if text:
                _warn(f"Recovery: ranks that die are not replaced, because of rank {rank}: {text}")
                _C.end_healing(healing)
                return
        self._healing, self._wrapped = healing, wrapped
        self._keep_own()
        healing.set_healable(True)
        self._begin_together()

    def _begin_together(self):
        """Nobody goes on before all can hand their state over: who is ahead may die at once."""
        self._items.keep()
        try:
            dist.barrier()
        except Exception as error:  # as in _run()
            if not self._healing.has_world_changed(isinstance(error, RuntimeError)):
                raise
            self._heal({"new": False, "steps": 0, "holds": _BEFORE})

    def _keep_own(self):
        self._healing.keep_own(self._items.statistics)

    def _check_own(self):
        """They are copied from where they were at first."""
        if not self._items.have_statistics_moved():
            return
        raise RuntimeError(
            "Recovery: running statistics of a BatchNorm are another tensor than when Recovery was made: convert or move a "
            "module, and replace its buffers, before Recovery"
        )

    def steps(self):
        """Steps that have ended, those before this process took the place of another one too. Those that have failed do not count."""
        self._is_asked = True
        return self._steps

    def close(self):
        """From here on a rank that dies ends the job."""
        if self._healing is not None:
            self._end_healing()

    def _end_healing(self):
        _C.end_healing(self._healing)
        self._healing = None

    def __enter__(self):
        return self

    def __exit__(self, kind, _error, _traceback):
        if kind is None:
            self.close()

    def _run(self, body):
        if self._is_new and self._steps > 0 and not self._is_asked and not self._items.things:
            raise RuntimeError(
                "step(recovery, ...): this process has taken the place of one that died, but the program cannot know where it "
                "is: ask Recovery.steps() in its loop, or name the sampler in Recovery"
            )
        while True:
            began_at, has_ended = self._steps, False
            try:
                self._begin()
                body()
                self._check_end()
                has_ended = True
                self._commit()
                return
            except Exception as error:  # whatever the body raises where an operation of it was interrupted
                if self._healing is None or not self._healing.has_world_changed(isinstance(error, RuntimeError)):
                    raise
            holds = _AFTER if has_ended else _NEITHER if self._items.are_written() else _BEFORE
            self._heal({"new": False, "steps": began_at, "holds": holds})
            if self._steps > began_at:
                return  # this rank's call was for a step that has ended

    def _begin(self):
        self._items.drop_gradients()
        if self._healing is not None:
            self._check_own()
            self._items.keep()
            is_power_of_two = self._steps > 0 and self._steps & (self._steps - 1) == 0
            if is_power_of_two and self._compared_at != self._steps:
                self._compare()
        if self._healing is not None:
            self._healing.begin(self._steps)
        rank = dist.get_rank() if dist.is_initialized() else 0
        torch.manual_seed(_C.seed_of_step(self._seed, rank, self._steps))

    def _check_end(self):
        """A body that catches the error of a collective has skipped what comes behind it."""
        if self._healing is None:
            return
        if self._healing.has_failed():
            raise RuntimeError(
                "step(recovery, ...): a collective of this step has failed, but the body has caught its error: let it leave the "
                "body, which is called again if a rank was replaced"
            )
        self._check_own()

    def _commit(self):
        self._steps += 1
        self._is_new = False
        if self._healing is not None:
            self._healing.commit(self._steps)

    def _compare(self):
        """What differs between the ranks could not be given back to one that dies."""
        all_hashes = _all_gather(self._items.hashes())
        self._compared_at = self._steps
        for i, name in enumerate(self._items.names()):
            for rank, hashes in enumerate(all_hashes):
                if hashes[i] == all_hashes[0][i]:
                    continue
                _warn(
                    f"Recovery: ranks that die are not replaced from here on: {name} differs between rank 0 and rank {rank} after step {self._steps}"
                )
                self._healing.set_healable(False)
                self._end_healing()
                return

    def _heal(self, own):
        while True:
            self._items.drop_gradients()
            if not self._healing.stop(_LONGEST_START):
                continue
            if not own["new"]:
                for ddp in self._wrapped:
                    _make_reducer_anew(ddp)
            if not self._healing.go_on(_LONGEST_START):
                continue
            try:
                self._take_over(own)
                return
            except Exception as error:
                # Otherwise a rank died while the others were here: they meet again.
                if not self._healing.has_world_changed(isinstance(error, RuntimeError)):
                    raise

    def _take_over(self, own):
        reports = _all_gather({**own, "items": self._items.names()})
        for rank, report in enumerate(reports):
            if report["items"] != reports[0]["items"]:
                raise RuntimeError(
                    "Recovery: a new process has taken the place of a rank, but the things in Recovery of rank 0 and rank "
                    f"{rank} differ ({reports[0]['items']} and {report['items']}): name the same ones in every run"
                )
        donor, steps = _decide(reports)
        if donor is None:
            raise RuntimeError(
                "Recovery: a rank died when all others had updated their weights and were not at the end of the step: nobody "
                "has weights to go on with. Put collectives of a step before its optimizer's step(), or into a step of their own"
            )
        have_it = [_position(report) == steps for report in reports]
        if own["holds"] == _BEFORE and have_it[dist.get_rank()]:
            self._items.restore()
        self._check_alike(have_it, donor, "differs between ranks that had none of them died, so a rank that dies cannot get it back")
        needs_it = not have_it[dist.get_rank()]
        if not own["new"] and needs_it:
            own["holds"] = _NEITHER  # from here on
        self._items.hand_over(donor, needs_it)
        self._healing.go_to(steps, donor)
        # From here on this rank has it, whoever dies.
        own.update(new=False, steps=steps, holds=_BEFORE)
        self._items.keep()
        self._check_alike([True] * len(reports), donor, "is another one after it was handed over: what it gives as its state is not all of it")
        self._steps = self._compared_at = steps
        self._healing.commit(steps)

    def _check_alike(self, counts, model, what):
        """counts: by rank, whose hashes must be those of rank `model`."""
        all_hashes = _all_gather(self._items.hashes())
        for i, name in enumerate(self._items.names()):
            for rank, hashes in enumerate(all_hashes):
                if counts[rank] and hashes[i] != all_hashes[model][i]:
                    raise RuntimeError(f"Recovery: {name} of rank {rank} {what} (compared with rank {model})")


def step(recovery, body):
    """Calls `body`, a step of the training, on all ranks. It starts without gradients, and torch's default generator is seeded from
    (seed, rank, step). If a rank dies, `body` may be called again, after a state in which it has not been called. An exception that
    leaves `body` leaves step(), too; other ranks are not told of it."""
    recovery._run(body)


def give_up(why, speaker):
    """From here on a rank that dies ends the job. speaker: the rank that says so."""
    recovery = Recovery._that_replaces and Recovery._that_replaces()
    if recovery is not None and recovery._healing is not None:
        recovery._end_healing()
    if dist.get_rank() == speaker:
        logging.getLogger("lockstep").warning(f"Recovery: ranks that die are not replaced from here on: {why}")


def _is_stateless(hook):
    """Does the communication hook keep nothing from one step to the next?"""
    return getattr(hook, "__module__", "") == "torch.distributed.algorithms.ddp_comm_hooks.default_hooks" and hook.__qualname__ in (
        "allreduce_hook",
        "fp16_compress_hook",
        "bf16_compress_hook",
    )


def _make_reducer_anew(ddp):
    """What an interrupted backward leaves in a DistributedDataParallel is of no use; its own __setstate__ does the same."""
    built_in = "" if ddp._comm_hooks else ddp._get_ddp_logging_data().get("comm_hook", "")
    ddp.reducer._remove_autograd_hooks()
    parameters, expect_sparse_gradient = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    ddp._ddp_init_helper(parameters, expect_sparse_gradient, names, ddp.static_graph)
    if ddp.static_graph:
        ddp.reducer._set_static_graph()
        with contextlib.suppress(AttributeError):
            ddp.logger._set_static_graph()
    for hook, state in ddp._comm_hooks:
        ddp.logger._set_comm_hook_name(hook.__qualname__)
        dist._register_comm_hook(ddp.reducer, state, hook)
    if built_in:
        ddp._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, built_in.rpartition(".")[2]))


def _all_gather(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _warn(text):
    if dist.get_rank() == 0:
        logging.getLogger("lockstep").warning(text)
