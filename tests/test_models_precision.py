"""Mixed precision and checkpointing: the sampler and the trainer agree, gradients are the same ones."""

import copy

import pytest
import torch

from renshu.engines.choose import engine_for
from renshu.engines.native import NativeEngine
from renshu.engines.protocol import Sampling
from renshu.errors import ConfigError, ModelError
from renshu.models.load import load
from renshu.models.precision import autocast_type, enable_autocast, enable_checkpointing, weight_type
from renshu.models.reference import reference_of
from renshu.models.settings import ModelSettings
from renshu.tree import supports_tree, token_logprobs
from renshu.types import Row
from tiny_models import save_tiny_model

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
ROWS = [
    Row((5, 3, 7, 2, 9, 9), (False, False, True, True, True, True)),
    Row((5, 3, 4, 6, 8, 1), (False, False, True, True, True, True)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("tiny"), template=TEMPLATE, width=64, layers=3)


def gradients(model, layout):
    model.train()
    model.zero_grad()
    token_logprobs(model, ROWS, layout=layout).logprobs.square().sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("adapter", ["none", "lora", "dora", "qlora"])
@pytest.mark.parametrize("layout", ["tree", "padded"])
def test_checkpointing_leaves_the_gradient_as_it_is(folder, adapter, layout):
    torch.manual_seed(0)
    plain = load(ModelSettings(name=str(folder), adapter=adapter)).model
    torch.manual_seed(0)
    saving = load(ModelSettings(name=str(folder), adapter=adapter, checkpointing=True)).model
    for model in (plain, saving):
        torch.manual_seed(1)
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.data.normal_(std=0.05)
    wanted, found = gradients(plain, layout), gradients(saving, layout)
    assert wanted.keys() == found.keys()
    for name, gradient in wanted.items():
        assert gradient.abs().max() > 0
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-6)


def passes(model):
    """How often the first layer's MLP runs: a checkpointed layer runs again for the gradient."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    count = []
    handle = base.model.layers[0].mlp.register_forward_pre_hook(lambda *_: count.append(1))
    return count, handle


def test_layers_run_again_for_the_gradient_and_never_when_sampling(folder):
    model = load(ModelSettings(name=str(folder), adapter="lora", checkpointing=True)).model
    supports_tree(model)
    count, handle = passes(model)
    gradients(model, "tree")
    assert len(count) == 2
    count.clear()
    with torch.no_grad():
        token_logprobs(model, ROWS)  # as for a reference, in training mode
    assert len(count) == 1
    count.clear()
    model.eval()
    token_logprobs(model, ROWS).logprobs.sum().backward()
    assert len(count) == 1
    handle.remove()


def test_a_model_without_checkpointing_is_told_so():
    class Plain:
        def activation_checkpointing_enable(self, _):
            raise ValueError("not compatible")

    with pytest.raises(ModelError, match=r"Plain has no checkpointing: set model\.checkpointing=false"):
        enable_checkpointing(Plain())


def sampled(model):
    """A turn of the engine: its rows with the log-probs they were sampled with."""
    engine = engine_for(model)
    assert isinstance(engine, NativeEngine)
    sessions = engine.open([5, 3, 7], seed=0).fork([1, 2, 3])

    async def turn(session):
        return await session.generate(Sampling(max_tokens=8))

    found = engine.run([turn(session) for session in sessions])
    rows = [Row((5, 3, 7, *g.segment.ids), (False,) * 3 + (True,) * len(g.segment.ids)) for g in found]
    return rows, torch.tensor([p for g in found for p in g.segment.logprobs])


@pytest.mark.parametrize("adapter", ["none", "lora", "qlora"])
def test_in_autocast_sampler_and_trainer_agree_and_weights_stay_wide(folder, adapter):
    settings = ModelSettings(name=str(folder), adapter=adapter, autocast="bfloat16")
    model = load(settings).model
    rows, logprobs = sampled(model)
    model.train()
    trained = token_logprobs(model, rows).logprobs
    assert (trained - logprobs).abs().max() < 0.02
    wide = token_logprobs(load(ModelSettings(name=str(folder), adapter=adapter)).model, rows).logprobs
    assert (trained - wide).abs().max() > 1e-5  # products are narrower indeed
    trained.sum().backward()
    trainable = [p for p in model.parameters() if p.requires_grad]
    assert {p.dtype for p in trainable} == {p.grad.dtype for p in trainable} == {torch.float32}
    narrow = model.get_base_model() if adapter != "none" else model
    assert narrow(input_ids=torch.tensor([[5, 6]])).logits.dtype == torch.bfloat16


def test_autocast_and_checkpointing_together_leave_the_gradient_as_it_is(folder):
    plain = load(ModelSettings(name=str(folder), autocast="bfloat16")).model
    saving = load(ModelSettings(name=str(folder), autocast="bfloat16", checkpointing=True)).model
    wanted, found = gradients(plain, "tree"), gradients(saving, "tree")
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-6)


def test_a_copy_in_autocast_computes_with_its_own_weights(folder):
    model = load(ModelSettings(name=str(folder), autocast="bfloat16")).model
    twin = copy.deepcopy(model)
    reference = reference_of(model)
    before = token_logprobs(model, ROWS).logprobs.detach()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    assert not torch.allclose(token_logprobs(model, ROWS).logprobs, before, atol=1e-3)
    assert torch.equal(token_logprobs(twin, ROWS).logprobs, before)
    assert torch.equal(reference(ROWS, 1.0), before)


def test_generate_finds_the_arguments_of_forward(folder):
    model = load(ModelSettings(name=str(folder))).model
    ids = torch.tensor([[5, 6, 7]])
    plain = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False
    )
    enable_autocast(model, torch.bfloat16)
    same = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=4, do_sample=False
    )
    assert same.shape == plain.shape


@pytest.mark.parametrize(
    ("settings", "device", "weights", "products"),
    [
        ({}, "cpu", torch.float32, None),
        ({"autocast": "auto"}, "cpu", torch.float32, None),
        ({"autocast": "bfloat16"}, "cpu", torch.float32, torch.bfloat16),
        ({"autocast": "bfloat16", "adapter": "lora"}, "cuda", torch.float32, torch.bfloat16),
        ({"adapter": "qlora"}, "cuda", torch.bfloat16, None),
    ],
)
def test_types_of_weights_and_products(settings, device, weights, products):
    settings = ModelSettings(**settings)
    adapted = settings.adapter is not None
    assert weight_type(settings, torch.device(device), adapted=adapted) == weights
    assert autocast_type(settings, torch.device(device)) == products


def test_autocast_on_narrow_weights_is_refused():
    with pytest.raises(ConfigError, match="autocast keeps the weights in float32: set dtype to float32"):
        ModelSettings(dtype="bfloat16", autocast="bfloat16")
