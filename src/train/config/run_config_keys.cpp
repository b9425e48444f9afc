#include "train/config/run_config_keys.h"

#include <utility>

#include "data/chat/chat_template.h"

namespace stepc::train {
namespace {

constexpr double kMostRanks = 1048576;  // as ir/mesh.h has it
constexpr double kMost = 1e9;           // of counts: far above any run, far below overflow of their products

// The field `section.*member` of a config.
template <class Section, class Member>
std::function<Field(RunConfig&)> at(Section RunConfig::*section, Member Section::*member) {
  return [=](RunConfig& config) -> Field { return &(config.*section.*member); };
}

Allowed at_least(double least) { return {.least = least, .most = kMost}; }
Allowed between(double least, double most) { return {.least = least, .most = most}; }
Allowed above(double least, double most) { return {.least = least, .most = most, .above_least = true}; }
Allowed below(double least, double most) { return {.least = least, .most = most, .below_most = true}; }
Allowed one_of(std::vector<std::string> choices) { return {.choices = std::move(choices)}; }
Allowed maybe_empty(Allowed allowed = {}) {
  allowed.may_be_empty = true;
  return allowed;
}

std::vector<std::string> chat_templates() {
  std::vector<std::string> names = ChatTemplate::names();
  names.insert(names.begin(), "model");
  return names;
}

}  // namespace

const std::vector<Key>& run_config_keys() {
  using R = RunConfig;
  const auto required = [](const char* example) { return Allowed{.required = true, .example = example}; };
  static const std::vector<Key> kKeys = {
      {"model.path", at(&R::model, &R::Model::path), required("\"model\""),
       "Hugging Face model directory to start from (`stepc init` makes one)"},
      {"model.compute", at(&R::model, &R::Model::compute), one_of({"bfloat16", "float16", "float32", "float64"}),
       "dtype of weights and activations; in float16 the loss is scaled"},

      {"lora.rank", at(&R::lora, &R::Lora::rank), between(0, 65536),
       "of low-rank adapters, which alone are trained then; 0: all weights are"},
      {"lora.alpha", at(&R::lora, &R::Lora::alpha), above(0, 1e6), "adapters are scaled by alpha / rank"},
      {"lora.dropout", at(&R::lora, &R::Lora::dropout), below(0, 1), "of what goes into the adapters"},
      {"lora.targets",
       at(&R::lora, &R::Lora::targets),
       {},
       "matrices of the layers that get one, such as q_proj; all-linear: every one"},

      {"data.train", at(&R::data, &R::Data::train), required("[\"text.txt\"]"),
       "files (.txt, .jsonl, .parquet), directories or patterns, read in this order"},
      {"data.weights", at(&R::data, &R::Data::weights), maybe_empty(above(0, 1e6)),
       "makes each entry of data.train a source with this share of the samples; without, they are one source"},
      {"data.field",
       at(&R::data, &R::Data::field),
       {},
       "of a .jsonl line, or the column of a .parquet file: its text, or the messages of a chat"},
      {"data.chat", at(&R::data, &R::Data::chat), one_of(chat_templates()),
       "template of chats; model: the one of its tokenizer_config.json"},
      {"data.skip_unusable",
       at(&R::data, &R::Data::skip_unusable),
       {},
       "whether to leave out lines and rows of which no document can be made (no JSON, no such field, a chat that the "
       "template refuses), counted in a warning, instead of ending at the first"},
      {"data.eval", at(&R::data, &R::Data::eval), maybe_empty(),
       "held-out files, directories or patterns; without, a part of data.train is held out"},
      {"data.eval_fraction", at(&R::data, &R::Data::eval_fraction), between(0, 0.5),
       "part of each source, at its end, held out from training where data.eval is empty; 0: nothing is, and nothing "
       "is "
       "evaluated"},
      {"data.eval_windows", at(&R::data, &R::Data::eval_windows), at_least(1),
       "held-out windows per evaluation, evenly spread"},
      {"data.seq_len", at(&R::data, &R::Data::seq_len), between(2, 1e6),
       "tokens per sequence: documents are packed into windows of this length"},
      {"data.buckets", at(&R::data, &R::Data::buckets), maybe_empty(between(2, 1e6)),
       "tokens per sequence where each is one document, in ascending order: a batch is padded to the least that holds "
       "it, "
       "and a step of every length is compiled before the first; empty: documents are packed"},
      {"data.cache", at(&R::data, &R::Data::cache), maybe_empty(),
       "directory of token shards, may be shared by runs; empty: tokens in output.dir"},

      {"train.steps", at(&R::train, &R::Train::steps), at_least(1), "optimizer steps"},
      {"train.batch_size", at(&R::train, &R::Train::batch_size), between(1, 1e6), "sequences per micro-batch"},
      {"train.micro_batches",
       at(&R::train, &R::Train::micro_batches),
       between(1, 1e6),
       "micro-batches per optimizer step: their gradients are added up in float32, and in fast mode their draws are "
       "those of one batch of all rows",
       {},
       {"grad_accum", "gradient_accumulation_steps", "gradient_accumulation"}},
      {"train.seed", at(&R::train, &R::Train::seed), at_least(0), "of the data order and of the sample"},
      {"train.threads", at(&R::train, &R::Train::threads), between(0, 4096),
       "CPU threads of a rank; 0: all cores, shared by the ranks of a machine"},
      {"train.device", at(&R::train, &R::Train::device), Allowed{},
       "where the step runs: cpu, cuda, cuda:1; auto is cuda on a kind of card on which docs/gpu.md has runs of "
       "stepc train, else cpu"},
      {"train.device_kernels", at(&R::train, &R::Train::device_kernels), Allowed{},
       "fast mode runs stepc's own kernels on CUDA, which have never run in steps on a GPU; false: its recorded calls"},
      {"train.mode", at(&R::train, &R::Train::mode), one_of({"fast", "exact", "eager"}),
       "fast: captured and run as one fused graph; exact: its recorded kernels replayed, bit-equal to eager; eager: op "
       "by op"},
      {"train.precision",
       at(&R::train, &R::Train::precision),
       one_of({"model", "fp8"}),
       "of fast mode's matmuls. model: model.compute; fp8: linear layers multiply in float8, but an output layer and "
       "sizes that 16 does not divide. GPUs from Ada on have it, a CPU emulates its numbers",
       {},
       {"enable_float8_linear", "fp8"}},
      {"train.fp8_recipe", at(&R::train, &R::Train::fp8_recipe), one_of({"tensorwise", "rowwise"}),
       "how precision fp8 scales, by the largest element. tensorwise: a number for each tensor, gradients as e5m2; "
       "rowwise: one for each row or column that a product sums, gradients as e4m3 too"},
      {"train.capture", at(&R::train, &R::Train::capture), one_of({"run", "virtual"}),
       "fast mode's step. run: recorded while it runs, then planned; virtual: planned before anything is loaded or "
       "run, "
       "so that a run takes what its plan says from the start, also where eager would not fit"},

      {"train.verify", at(&R::train, &R::Train::verify), one_of({"first", "every:N", "always", "off"}),
       "replays that are compared before they count, with the same step op by op (or unfused where kernels are fused). "
       "first: of every plan; always; every:N: the first and every N-th after it, against machines that compute "
       "wrongly "
       "at times; off"},

      {"memory.budget",
       at(&R::memory, &R::Memory::budget),
       {},
       "of fast mode, model and optimizer included: a size such as \"12GiB\" recomputes activations that do not fit; "
       "auto: as long as that costs 8 % of the time; none: all are kept"},

      {"parallel.ranks",
       at(&R::parallel, &R::Parallel::ranks),
       between(0, kMostRanks),
       "of the whole run; 0: as many as the axes below multiply to",
       {},
       {"world_size", "num_processes", "nproc_per_node", "gpus_per_node"}},
      {"parallel.strategy", at(&R::parallel, &R::Parallel::strategy), one_of({"given", "auto"}),
       "auto: the axes, zero and recomputation are chosen when the run starts, by plans of its step for this machine; "
       "the keys that are given hold (docs/parallel.md); given: the axes are those below"},
      {"parallel.cluster", at(&R::parallel, &R::Parallel::cluster), maybe_empty(),
       "of strategy auto: a cluster file with the links between the ranks, as `stepc calibrate --cluster` writes it; "
       "none: one rate for all of them"},
      {"parallel.dp_replicate",
       at(&R::parallel, &R::Parallel::dp_replicate),
       between(1, kMostRanks),
       "ranks that split the batch and each hold all that dp_shard leaves them; above 1 beside dp_shard: HSDP",
       {},
       {"data_parallel_replicate_degree", "dp_replicate_size", "dp_replicate_degree", "data_parallel_size",
        "data_parallel_degree", "ddp", "ddp_size"}},
      {"parallel.dp_shard",
       at(&R::parallel, &R::Parallel::dp_shard),
       between(-1, kMostRanks),
       "ranks that split the batch, and what `zero` says; -1: those of parallel.ranks that the other axes leave",
       {},
       {"data_parallel_shard_degree", "dp_shard_size", "dp_shard_degree", "fsdp", "fsdp_size", "fsdp_degree",
        "hybrid_shard_group_size"}},
      {"parallel.zero",
       at(&R::parallel, &R::Parallel::zero),
       between(1, 3),
       "what is split over dp_shard and cp. 1: optimizer state; 2: gradients too; 3: parameters too, as FSDP2 does",
       {},
       {"zero_stage", "zero_optimization", "stage", "fsdp_sharding_strategy", "sharding_strategy",
        "fsdp_reshard_after_forward", "reshard_after_forward"}},
      {"parallel.cp",
       at(&R::parallel, &R::Parallel::cp),
       between(1, kMostRanks),
       "ranks that split the sequence, and what `zero` says",
       {},
       {"context_parallel_degree", "context_parallel_size", "cp_size", "cp_degree", "sequence_parallel_size"}},
      {"parallel.tp",
       at(&R::parallel, &R::Parallel::tp),
       between(1, kMostRanks),
       "ranks that split matmuls, heads and classes: tensor parallelism",
       {},
       {"tensor_parallel_degree", "tensor_model_parallel_size", "tensor_parallel_size", "tp_size", "tp_degree",
        "autotp_size"}},
      {"parallel.pp",
       at(&R::parallel, &R::Parallel::pp),
       between(1, kMostRanks),
       "ranks that split the layers into stages, through which the micro-batches of a step go: a pipeline",
       {},
       {"pipeline_parallel_degree", "pipeline_model_parallel_size", "pipeline_parallel_size", "pp_size", "pp_degree"}},
      {"parallel.chunks",
       at(&R::parallel, &R::Parallel::chunks),
       between(1, kMostRanks),
       "stages of each rank of a pipeline: above 1 ranks wait less, and hold and send more",
       {},
       {"virtual_pipeline_model_parallel_size", "num_model_chunks", "pp_chunks"}},
      {"parallel.order",
       at(&R::parallel, &R::Parallel::order),
       {},
       "of forward and backward passes in a pipeline. 1f1b: a backward pass as soon as there can be one; gpipe: all "
       "forward passes first; zb-h1, zb-v, dualpipe-v: backward passes for weights apart, so that ranks hardly wait; "
       "or a "
       ".csv file, a row a rank, of stage, F, B, I or W, micro-batch, as in 0F3",
       {},
       {"pipeline_parallel_schedule", "pipeline_parallel_schedule_csv", "pp_schedule"}},
      {"parallel.stages",
       at(&R::parallel, &R::Parallel::stages),
       maybe_empty(),
       "the modules with which the stages of a pipeline begin, as \"layers.8\"; none: so that all compute as much",
       {},
       {"module_fqns_per_model_part", "pipeline_parallel_split_points", "pipeline_parallel_layers_per_stage"}},
      {"parallel.sequence_parallel",
       at(&R::parallel, &R::Parallel::sequence_parallel),
       {},
       "what lies between the matmuls of tp is split along the sequence: less memory, for a quarter more bytes sent",
       {},
       {"enable_sequence_parallel", "tensor_parallel_sequence"}},
      {"parallel.context",
       at(&R::parallel, &R::Parallel::context),
       one_of({"auto", "gather", "heads", "ring"}),
       "how attention sees a sequence split over cp: keys and values are gathered, each rank has all tokens of some "
       "heads (all-to-all), or keys and values go around the ranks; auto: the fastest, as predicted",
       {},
       {"context_parallel_rotate_method", "ulysses", "ulysses_degree", "ulysses_sequence_parallel_size", "sp_mode",
        "ring_attention", "context_parallel_load_balancer"}},
      {"parallel.reduce",
       at(&R::parallel, &R::Parallel::reduce),
       one_of({"float32", "bfloat16"}),
       "bfloat16: float32 gradients are sent as bfloat16, half the bytes, and still added up in float32; float32: as "
       "they are",
       {},
       {"reduce_dtype", "mixed_precision_reduce", "communication_data_type", "accumulate_allreduce_grads_in_fp32"}},
      {"parallel.overlap",
       at(&R::parallel, &R::Parallel::overlap),
       {},
       "exchanges between ranks go on beside the computation, where that is faster as predicted: up to an eighth more "
       "memory for the step, or what a budget leaves; false: each blocks",
       {},
       {"overlap_comm", "overlap_grad_reduce", "overlap_param_gather", "forward_prefetch", "async_tensor_parallel"}},
      {"parallel.shard",
       at(&R::parallel, &R::Parallel::shard),
       maybe_empty(),
       "how parameters are split, where it shall not be as found: `*` in their names is any text, and the axis of each "
       "dimension counted from 0",
       {},
       {"tp_plan", "parallelize_plan", "sharding_rules"}},

      {"elastic.stall_seconds", at(&R::elastic, &R::Elastic::stall_seconds), between(1, 86400),
       "that a rank may not answer the others, or may be in one instruction: then all end, and say whom they waited "
       "for (docs/elastic.md)"},
      {"elastic.check_every", at(&R::elastic, &R::Elastic::check_every), at_least(0),
       "steps between comparisons of what several ranks hold alike, parameters and optimizer state, and before every "
       "save; 0: none"},
      {"elastic.snapshot_every", at(&R::elastic, &R::Elastic::snapshot_every), at_least(0),
       "steps between copies of model and optimizer in memory that outlives the ranks, from which a run that is "
       "started again goes on before it looks at checkpoints; one that comes due while the one before is hashed and "
       "sent is left out; 0: none"},
      {"elastic.snapshot_copies", at(&R::elastic, &R::Elastic::snapshot_copies), between(0, 8),
       "other machines that hold what a rank has of a snapshot, as far as there are so many"},
      {"elastic.rejoin_seconds", at(&R::elastic, &R::Elastic::rejoin_seconds), between(0, 86400),
       "that ranks which have lost one wait for another in its place, and go on with what they hold; for launchers "
       "that start "
       "single ranks again; 0: they end"},

      {"optim.name", at(&R::optim, &R::Optim::name), one_of({"adamw", "sgd", "agd", "wsam", "lion"}),
       "optimizer; wsam: AdamW with two gradients a step, the second uphill"},
      {"optim.lr", at(&R::optim, &R::Optim::lr), above(0, 10),
       "peak learning rate; agd and lion want about a tenth of AdamW's"},
      {"optim.schedule", at(&R::optim, &R::Optim::schedule), one_of({"cosine", "linear", "wsd", "constant"}),
       "of the learning rate after the warm-up; wsd: constant, then a straight line down"},
      {"optim.min_lr_ratio", at(&R::optim, &R::Optim::min_lr_ratio), between(0, 1),
       "last learning rate / peak, at the end of the decay"},
      {"optim.warmup_steps", at(&R::optim, &R::Optim::warmup_steps), at_least(0), "steps of linear warm-up"},
      {"optim.decay_fraction", at(&R::optim, &R::Optim::decay_fraction), above(0, 1),
       "part of the steps, at the end, in which wsd decays"},
      {"optim.weight_decay", at(&R::optim, &R::Optim::weight_decay), between(0, 10),
       "of matrices, not of norms and biases; decoupled, in sgd added to the gradient"},
      {"optim.decay_embeddings", at(&R::optim, &R::Optim::decay_embeddings), {}, "whether embeddings decay too"},
      {"optim.clip", at(&R::optim, &R::Optim::clip), above(0, kMost), "largest norm of the whole gradient"},
      {"optim.betas",
       at(&R::optim, &R::Optim::betas),
       below(0, 1),
       "decay rates of the first and second moment: adamw, wsam, agd, lion",
       {"adamw", "wsam", "agd", "lion"}},
      {"optim.eps", at(&R::optim, &R::Optim::eps), above(0, 1), "AdamW's epsilon: adamw, wsam", {"adamw", "wsam"}},
      {"optim.momentum", at(&R::optim, &R::Optim::momentum), below(0, 1), "of sgd", {"sgd"}},
      {"optim.nesterov", at(&R::optim, &R::Optim::nesterov), {}, "Nesterov's momentum in sgd", {"sgd"}},
      {"optim.agd_delta",
       at(&R::optim, &R::Optim::agd_delta),
       above(0, 1),
       "agd's floor under its preconditioner",
       {"agd"}},
      {"optim.wsam_rho", at(&R::optim, &R::Optim::wsam_rho), between(0, 100), "how far uphill wsam looks", {"wsam"}},
      {"optim.wsam_gamma",
       at(&R::optim, &R::Optim::wsam_gamma),
       below(0, 1),
       "weight of the sharpness in wsam",
       {"wsam"}},
      {"optim.master_weights",
       at(&R::optim, &R::Optim::master_weights),
       {},
       "updates in a float32 copy of bfloat16 weights; without, stochastic rounding"},

      {"output.dir", at(&R::output, &R::Output::dir), required("\"out\""),
       "directory of this run: checkpoints, metrics.jsonl, the final model"},
      {"output.save_every", at(&R::output, &R::Output::save_every), at_least(0),
       "steps between checkpoints; 0: only at the end or when stopped by a signal"},
      {"output.keep_last", at(&R::output, &R::Output::keep_last), at_least(1), "newest checkpoints to keep"},
      {"output.keep_every", at(&R::output, &R::Output::keep_every), at_least(0),
       "also keep checkpoints whose step is a multiple of this; 0: none"},
      {"output.keep_best",
       at(&R::output, &R::Output::keep_best),
       {},
       "also save and keep the checkpoint with the lowest held-out loss"},
      {"output.max_shard_gb", at(&R::output, &R::Output::max_shard_gb), above(0, 1e6),
       "weights above this many GB are saved in several files with an index"},
      {"output.log_every", at(&R::output, &R::Output::log_every), at_least(1),
       "steps between lines of metrics.jsonl, and of progress without a terminal"},
      {"output.eval_every", at(&R::output, &R::Output::eval_every), at_least(0),
       "steps between evaluations; 0: only before and after"},
      {"output.sample_tokens", at(&R::output, &R::Output::sample_tokens), between(0, 1e5),
       "length of the sample printed at the end; 0: none"},
  };
  return kKeys;
}

}  // namespace stepc::train
