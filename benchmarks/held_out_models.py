"""Models that nobody looks at while the prediction is worked on: other families, widths, depths and batches than those of
the parity tests and of the table. Each is a function that makes a model with a loss, and its batch."""

import timm.models
import torch
import torchvision
import transformers as hf


class Classifier(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.cross_entropy(self.net(x), labels)}


class Autoencoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 24, 4, 2, 1), torch.nn.LeakyReLU(), torch.nn.Conv2d(24, 48, 4, 2, 1),
            torch.nn.InstanceNorm2d(48, affine=True), torch.nn.LeakyReLU(), torch.nn.ConvTranspose2d(48, 24, 4, 2, 1),
            torch.nn.LeakyReLU(), torch.nn.ConvTranspose2d(24, 3, 4, 2, 1))

    def forward(self, x):
        return {"loss": torch.nn.functional.smooth_l1_loss(self.net(x), x)}


class Recommender(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.users, self.items = torch.nn.Embedding(500, 48), torch.nn.Embedding(900, 48)
        self.net = torch.nn.Sequential(torch.nn.Linear(96, 160), torch.nn.Softplus(), torch.nn.Linear(160, 80),
                                       torch.nn.SELU(), torch.nn.Linear(80, 1))

    def forward(self, users, items, liked):
        score = self.net(torch.cat([self.users(users), self.items(items)], 1))[:, 0]
        return {"loss": torch.nn.functional.binary_cross_entropy_with_logits(score, liked.to(score.dtype))}


def ids_of(vocabulary, batch, length):
    ids = torch.randint(3, vocabulary, (batch, length))
    return {"input_ids": ids, "labels": ids}


def images(batch, side, classes):
    return {"x": torch.randn(batch, 3, side, side), "labels": torch.randint(classes, (batch,))}


def mistral():
    config = hf.MistralConfig(vocab_size=300, hidden_size=96, intermediate_size=224, num_hidden_layers=3,
                              num_attention_heads=6, num_key_value_heads=2, head_dim=16, use_cache=False)
    return hf.MistralForCausalLM(config), ids_of(300, 4, 48)


def gpt_neox():
    config = hf.GPTNeoXConfig(vocab_size=200, hidden_size=64, intermediate_size=256, num_hidden_layers=4,
                              num_attention_heads=4, max_position_embeddings=64, use_cache=False)
    return hf.GPTNeoXForCausalLM(config), ids_of(200, 2, 24)


def opt():
    config = hf.OPTConfig(vocab_size=400, hidden_size=48, ffn_dim=192, num_hidden_layers=3, num_attention_heads=3,
                          word_embed_proj_dim=48, max_position_embeddings=64, use_cache=False)
    return hf.OPTForCausalLM(config), ids_of(400, 6, 20)


def phi():
    config = hf.PhiConfig(vocab_size=128, hidden_size=40, intermediate_size=160, num_hidden_layers=2,
                          num_attention_heads=5, use_cache=False)
    return hf.PhiForCausalLM(config), ids_of(128, 5, 36)


def distilbert():
    config = hf.DistilBertConfig(vocab_size=250, dim=72, hidden_dim=288, n_layers=3, n_heads=6,
                                 max_position_embeddings=64)
    return hf.DistilBertForMaskedLM(config), ids_of(250, 4, 40)


def albert():
    config = hf.AlbertConfig(vocab_size=160, embedding_size=24, hidden_size=80, intermediate_size=200,
                             num_hidden_layers=4, num_attention_heads=5, max_position_embeddings=64)
    return hf.AlbertForMaskedLM(config), ids_of(160, 3, 28)


def bart():
    config = hf.BartConfig(vocab_size=180, d_model=48, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
                           decoder_attention_heads=3, encoder_ffn_dim=128, decoder_ffn_dim=128,
                           max_position_embeddings=64, use_cache=False)
    return hf.BartForConditionalGeneration(config), ids_of(180, 4, 18)


def segformer():
    config = hf.SegformerConfig(num_labels=6, hidden_sizes=[16, 24, 40, 56], depths=[1, 1, 1, 1],
                                num_attention_heads=[1, 2, 5, 7], sr_ratios=[4, 2, 1, 1])
    batch = {"pixel_values": torch.randn(2, 3, 64, 64), "labels": torch.randint(6, (2,))}
    return hf.SegformerForImageClassification(config), batch


def mobilenet():
    return Classifier(torchvision.models.mobilenet_v3_small(num_classes=7, width_mult=0.5)), images(6, 48, 7)


def densenet():
    net = torchvision.models.DenseNet(growth_rate=12, block_config=(3, 3), num_init_features=24, num_classes=9)
    return Classifier(net), images(5, 40, 9)


def mixer():
    net = timm.models.mlp_mixer.MlpMixer(num_classes=11, img_size=48, patch_size=8, num_blocks=3, embed_dim=56)
    return Classifier(net), images(6, 48, 11)


def regnet():
    net = torchvision.models.RegNet(torchvision.models.regnet.BlockParams([1, 1, 2, 1], [16, 24, 48, 64], [8, 8, 8, 8],
                                                                         [1, 1, 1, 1], [2, 2, 2, 2], 0.25),
                                    num_classes=8)
    return Classifier(net), images(4, 56, 8)


def autoencoder():
    return Autoencoder(), {"x": torch.randn(6, 3, 40, 40)}


def recommender():
    return Recommender(), {"users": torch.randint(500, (256,)), "items": torch.randint(900, (256,)),
                           "liked": torch.randint(2, (256,))}


HELD_OUT = {"mistral": mistral, "gpt_neox": gpt_neox, "opt": opt, "phi": phi, "distilbert": distilbert, "albert": albert,
            "bart": bart, "segformer": segformer, "mobilenet": mobilenet, "densenet": densenet, "mixer": mixer,
            "regnet": regnet, "autoencoder": autoencoder, "recommender": recommender}
