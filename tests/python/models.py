"""The models of the parity tests: unmodified, from their public configs, two layers deep and a few dozen wide.

A `Model` says how to build one, what a batch is and which variants (checkpointing, masks) it has. Batches are
new every step; the shapes stay.
"""

import dataclasses
from collections.abc import Callable

import diffusers
import timm.models
import torch
import transformers as hf

from harness import source_of

VOCABULARY = 64
BATCH, LENGTH = 3, 10
CONVOLUTIONS = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)


@dataclasses.dataclass
class Model:
    make: Callable  # () -> module, in float32
    batch: Callable  # (generator, masked) -> dict of what the forward takes
    loss_of: Callable = lambda module, batch: module(**batch).loss
    masks: bool = False
    checkpointing: bool = True

    def build(self):
        """A new module. Threads of oneDNN's convolutions spin until all of them have arrived, which takes a time slice
        where cores are fewer than threads: who convolves runs on one."""
        module = self.make()
        if any(isinstance(each, CONVOLUTIONS) for each in module.modules()):
            torch.set_num_threads(1)
        return module


def padding(source, length=LENGTH):
    """A right-padded attention mask with other lengths every time; the first row is full, the others never are."""
    lengths = torch.randint(length // 2, length, (BATCH,), generator=source)
    lengths[0] = length
    return (torch.arange(length) < lengths[:, None]).long()


def tokens(source, length=LENGTH):
    return torch.randint(3, VOCABULARY, (BATCH, length), generator=source)


def causal_batch(source, masked):
    ids = tokens(source)
    if not masked:
        return {"input_ids": ids, "labels": ids.clone()}
    mask = padding(source)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def translation_batch(source, masked):
    batch = {"input_ids": tokens(source), "labels": tokens(source, 7)}
    if masked:
        batch["attention_mask"] = padding(source)
        batch["decoder_attention_mask"] = padding(source, 7)
        batch["labels"] = batch["labels"].masked_fill(batch["decoder_attention_mask"] == 0, -100)
    return batch


def image_batch(source, masked):
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32, generator=source),
            "labels": torch.randint(5, (BATCH,), generator=source)}


def timm_batch(source, masked):
    return {"x": torch.randn(4, 3, 32, 32, generator=source), "labels": torch.randint(5, (4,), generator=source)}


def timm_loss(module, batch):
    return torch.nn.functional.cross_entropy(module(batch["x"]), batch["labels"])


# ---- transformers: text

DECODER = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, head_dim=8, max_position_embeddings=32, pad_token_id=0, bos_token_id=1,
               eos_token_id=2, use_cache=False)


def decoder(config_type, **fields):
    return Model(lambda: hf.AutoModelForCausalLM.from_config(config_type(**{**DECODER, **fields})), causal_batch,
                 masks=True)


def gpt2():
    return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=32,
                                            bos_token_id=1, eos_token_id=2, use_cache=False))


def bloom():
    return hf.BloomForCausalLM(hf.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4,
                                              hidden_dropout=0.1, use_cache=False))


def bert():
    return hf.BertForMaskedLM(hf.BertConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
                                            num_attention_heads=4, intermediate_size=48, max_position_embeddings=32))


def t5():
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2,
                                                     num_heads=4, decoder_start_token_id=0, use_cache=False))


# ---- transformers: images and speech


def vit():
    return hf.ViTForImageClassification(hf.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                                                     intermediate_size=48, image_size=32, patch_size=8, num_labels=5))


def resnet():
    return hf.ResNetForImageClassification(hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
                                                           layer_type="basic", num_labels=5))


def whisper():
    return hf.WhisperForConditionalGeneration(hf.WhisperConfig(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=12,
        max_target_positions=16, dropout=0.1, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None, use_cache=False))


def whisper_batch(source, masked):
    batch = {"input_features": torch.randn(BATCH, 8, 24, generator=source), "labels": tokens(source, 7)}
    if masked:
        mask = padding(source, 7)
        batch |= {"decoder_attention_mask": mask, "labels": batch["labels"].masked_fill(mask == 0, -100)}
    return batch


def speech_t5():
    return hf.SpeechT5ForTextToSpeech(hf.SpeechT5Config(
        vocab_size=VOCABULARY, hidden_size=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, encoder_layerdrop=0.0, decoder_layerdrop=0.0,
        num_mel_bins=8, speech_decoder_prenet_units=16, speech_decoder_postnet_units=16, speaker_embedding_dim=12,
        max_text_positions=32, max_speech_positions=32, use_cache=False))


def speech_t5_batch(source, masked):
    batch = {"input_ids": tokens(source), "labels": torch.randn(BATCH, 12, 8, generator=source),
             "speaker_embeddings": torch.randn(BATCH, 12, generator=source)}
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    if masked:  # always alike: the guided attention loss makes a tensor as long as every row
        mask[1, -2:] = mask[2, -3:] = 0
        batch["labels"][1, -2:] = -100.0
    batch["attention_mask"] = mask
    return batch


# ---- timm


def timm_resnet():
    return timm.models.resnet.ResNet(timm.models.resnet.BasicBlock, layers=[1, 1, 1, 1], channels=(8, 8, 16, 16),
                                     num_classes=5, drop_path_rate=0.1)


def timm_convnext():
    return timm.models.convnext.ConvNeXt(num_classes=5, depths=(1, 1, 2, 1), dims=(8, 8, 16, 16), drop_path_rate=0.2)


def timm_swin():
    return timm.models.swin_transformer.SwinTransformer(img_size=32, patch_size=4, num_classes=5, embed_dim=16,
                                                        depths=(2, 2), num_heads=(2, 4), window_size=4, drop_rate=0.1)


# ---- diffusers: the usual loss, noise and time steps drawn inside the step


def unet():
    return diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16, attention_head_dim=8)


def unet_batch(source, masked):
    batch = {"latents": torch.randn(2, 4, 8, 8, generator=source),
             "encoder_hidden_states": torch.randn(2, 6, 16, generator=source)}
    if masked:
        batch["encoder_attention_mask"] = torch.arange(6)[None] < torch.randint(2, 6, (2, 1), generator=source)
    return batch


def dit():
    return diffusers.DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=16, in_channels=4, num_layers=2,
                                           sample_size=8, num_embeds_ada_norm=10, norm_num_groups=4)


def dit_batch(source, masked):
    return {"latents": torch.randn(2, 4, 8, 8, generator=source),
            "class_labels": torch.randint(10, (2,), generator=source)}


def noise_prediction(schedule):
    def loss_of(module, batch):
        latents = batch["latents"]
        noise = torch.randn_like(latents)
        times = torch.randint(0, schedule.config.num_train_timesteps, (latents.shape[0],), device=latents.device).long()
        condition = {key: value for key, value in batch.items() if key != "latents"}
        predicted = module(schedule.add_noise(latents, noise, times), timestep=times, **condition).sample
        return torch.nn.functional.mse_loss(predicted.float(), noise.float(), reduction="mean")

    return loss_of


MODELS = {
    "llama": decoder(hf.LlamaConfig),
    "qwen2": decoder(hf.Qwen2Config),
    "qwen3": decoder(hf.Qwen3Config),
    "olmo": decoder(hf.OlmoConfig, clip_qkv=4.0),
    "olmo2": decoder(hf.Olmo2Config),
    "gpt2": Model(gpt2, causal_batch, masks=True),
    "bloom": Model(bloom, causal_batch, masks=True),
    "glm": decoder(hf.GlmConfig, attention_dropout=0.1),
    "gemma2": decoder(hf.Gemma2Config, sliding_window=6, query_pre_attn_scalar=8),
    "bert": Model(bert, causal_batch, masks=True),
    "t5": Model(t5, translation_batch, masks=True),
    "vit": Model(vit, image_batch),
    "resnet": Model(resnet, image_batch, checkpointing=False),
    "whisper": Model(whisper, whisper_batch, masks=True),
    "speech_t5": Model(speech_t5, speech_t5_batch, masks=True),
    "timm_resnet": Model(timm_resnet, timm_batch, timm_loss),
    "timm_convnext": Model(timm_convnext, timm_batch, timm_loss),
    "timm_swin": Model(timm_swin, timm_batch, timm_loss),
    "unet": Model(unet, unet_batch, noise_prediction(diffusers.DDPMScheduler()), masks=True),
    "dit": Model(dit, dit_batch, noise_prediction(diffusers.DDPMScheduler())),
}


def mixtral(experts="eager"):
    """`experts`: how transformers 5 computes them; transformers 4 has only the loop over experts that is called "eager" there."""
    model = hf.MixtralForCausalLM(hf.MixtralConfig(**DECODER, num_local_experts=4, num_experts_per_tok=2))
    if EXPERTS_CAN_BE_CHOSEN:
        model.set_experts_implementation(experts)
    return model


EXPERTS_CAN_BE_CHOSEN = hasattr(hf.PreTrainedModel, "set_experts_implementation")
# Its default: routing decides the values of offsets, and no shape. The products are ATen's own, which has none in float64.
GROUPED = {"mixtral": Model(lambda: mixtral("grouped_mm"), causal_batch)} if EXPERTS_CAN_BE_CHOSEN else {}


def enable_checkpointing(module, reentrant=False):
    if isinstance(module, hf.PreTrainedModel):
        module.gradient_checkpointing_enable({"use_reentrant": reentrant})
    elif isinstance(module, diffusers.ModelMixin):
        module.enable_gradient_checkpointing()
    else:
        module.set_grad_checkpointing(True)


def cast(batch, dtype):
    return {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}
