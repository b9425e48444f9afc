#include "comm/launch.h"

#include <charconv>
#include <filesystem>
#include <optional>
#include <span>

#include "base/check.h"
#include "base/files.h"
#include "base/hash.h"

namespace stepc {

namespace {

constexpr int64_t kMostRanks = 1 << 20;

class LaunchReader {
 public:
  explicit LaunchReader(const std::function<const char*(const char*)>& variable) : variable_(variable) {}

  Launch read() const {
    Launch launch = started();
    if (launch.ranks > 1) launch.secret = secret();
    return launch;
  }

 private:
  [[nodiscard]] Launch started() const {
    if (given("RANK") || given("WORLD_SIZE") || given("LOCAL_RANK")) return from_ranks();
    if (given("PET_NODE_RANK") || text("PET_NNODES").value_or("1") != "1") return from_pods();
    // Before Slurm: under mpirun its variables are those of the daemon that started the process.
    if (given("OMPI_COMM_WORLD_RANK") || given("OMPI_COMM_WORLD_SIZE")) return from_open_mpi();
    // In the shell of an allocation, without srun, there is no step of several tasks.
    if (given("SLURM_PROCID") && given("SLURM_STEP_NUM_TASKS")) return from_slurm();
    return {};
  }

  [[nodiscard]] std::string secret() const {
    constexpr size_t kLeast = 16;
    constexpr const char *kText = "STEPC_SECRET", *kFile = "STEPC_SECRET_FILE";
    const std::optional<std::string> whole = text(kText), file = text(kFile);
    if (!whole && !file) return {};
    const std::string secret = whole ? *whole : secret_in(kFile, *file);
    USER_CHECK(secret.size() >= kLeast, "{}: a secret of {} characters is soon guessed: give at least {}",
               whole ? kText : kFile, secret.size(), kLeast);
    return secret;
  }
  static std::string secret_in(const char* variable, const std::string& file) {
    constexpr uint64_t kMost = 4096;
    std::error_code error;
    const auto rights = std::filesystem::status(file, error).permissions();
    constexpr auto kOthers = std::filesystem::perms::group_all | std::filesystem::perms::others_all;
    USER_CHECK(error || (rights & kOthers) == std::filesystem::perms::none,
               "{}: others may read {}, which is to be the ranks' secret: chmod 600 it", variable, file);
    return first_line(read_text(file, kMost));
  }
  [[nodiscard]] std::optional<std::string> text(const char* name) const {
    const char* value = variable_(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }
  [[nodiscard]] bool given(const char* name) const { return text(name).has_value(); }

  [[nodiscard]] std::optional<int64_t> find_number(const char* name, int64_t least, int64_t most) const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
    USER_CHECK(error == std::errc() && end == value->data() + value->size() && number >= least && number <= most,
               "the environment variable {} is '{}', and not a number from {} to {}", name, *value, least, most);
    return number;
  }
  // `because`: the variable that makes it necessary.
  [[nodiscard]] int64_t number(const char* name, int64_t least, int64_t most, const char* because) const {
    const std::optional<int64_t> value = find_number(name, least, most);
    if (!value)
      user_error("the environment variable {} is '{}' and {} is not set: set both, or none for one process", because,
                 text(because).value_or(""), name);
    return *value;
  }

  // Rank and ranks by their variables' names, and among those of this machine where that is said.
  void place(Launch& launch, const char* rank, const char* ranks, const char* local_rank,
             const char* local_ranks) const {
    const char* said = given(ranks) ? ranks : given(rank) ? rank : local_rank;
    launch.ranks = number(ranks, 1, kMostRanks, said);
    launch.rank = number(rank, 0, kMostRanks, said);
    USER_CHECK(launch.rank < launch.ranks, "the environment variable {} is {}, and {} is {}: ranks count from 0", rank,
               launch.rank, ranks, launch.ranks);
    const std::optional<int64_t> local = find_number(local_rank, 0, kMostRanks);
    const std::optional<int64_t> locals = find_number(local_ranks, 1, kMostRanks);
    launch.local_rank = local.value_or(0);
    launch.local_ranks = locals.value_or(launch.local_rank + 1);
    USER_CHECK(launch.local_rank < launch.local_ranks, "the environment variable {} is {}, and {} is {}", local_rank,
               launch.local_rank, local_ranks, launch.local_ranks);
    USER_CHECK(launch.local_ranks <= launch.ranks, "the environment variable {} is {}, more than the {} of {}",
               locals ? local_ranks : local_rank, locals ? launch.local_ranks : launch.local_rank, launch.ranks, ranks);
  }

  // Where the ranks meet, as `address` and `port` say; what they do not say is as it is in `launch`.
  void meet_at(Launch& launch, const char* address, const char* port, const char* ranks) const {
    if (const std::optional<std::string> value = text(address)) launch.address = *value;
    if (const std::optional<int64_t> value = find_number(port, 1, 65535)) launch.port = static_cast<int>(*value);
    if (launch.ranks == 1) return;
    USER_CHECK(!launch.address.empty(),
               "the environment variable {} is {} and {} is not set: set it to the address of the machine of rank 0",
               ranks, launch.ranks, address);
    USER_CHECK(launch.port != 0,
               "the environment variable {} is {} and {} is not set: set it to a port that is free where rank 0 runs",
               ranks, launch.ranks, port);
  }

  [[nodiscard]] Launch from_ranks() const {
    Launch launch;
    place(launch, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
    launch.address.clear();
    meet_at(launch, "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE");
    const std::string agent_store = text("TORCHELASTIC_USE_AGENT_STORE").value_or("");
    launch.agent_store = agent_store == "True" || agent_store == "true" || agent_store == "1";
    launch.agent = find_number("STEPC_AGENT", 1, INT32_MAX).value_or(0);
    launch.restart = find_number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30).value_or(0);
    // Of torchrun "none" is what every run is called that nobody has named.
    if (const auto run = text("TORCHELASTIC_RUN_ID"); run && *run != "none") launch.run = *run;
    launch.by = given("TORCHELASTIC_RUN_ID") ? "torchrun" : given("PET_NNODES") ? "Kubeflow" : "RANK and WORLD_SIZE";
    return launch;
  }

  // What they say is meant for a torchrun in each pod. Without one a pod is one process.
  [[nodiscard]] Launch from_pods() const {
    Launch launch;
    const std::string processes = text("PET_NPROC_PER_NODE").value_or("1");
    if (processes != "auto" && processes != "cpu" && processes != "gpu")
      USER_CHECK(find_number("PET_NPROC_PER_NODE", 1, kMostRanks).value_or(1) == 1,
                 "the environment variable PET_NPROC_PER_NODE is {}, and this process is a pod's only one: start it "
                 "with torchrun",
                 processes);
    const std::string pods = text("PET_NNODES").value_or("");
    USER_CHECK(pods.find(':') == std::string::npos,
               "the environment variable PET_NNODES is {}: which of so many pods there are is for torchrun to find "
               "out: start this process with it",
               pods);
    place(launch, "PET_NODE_RANK", "PET_NNODES", "", "");
    launch.address.clear();
    meet_at(launch, "PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NNODES");
    launch.by = "Kubeflow";
    return launch;
  }

  [[nodiscard]] Launch from_open_mpi() const {
    Launch launch;
    place(launch, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE");
    if (launch.local_ranks < launch.ranks) launch.address.clear();  // of several machines mpirun does not say the first
    for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
      if (const auto job = text(name); job && launch.port == 0) launch.port = port_of(*job);
    meet_at(launch, "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_SIZE");
    launch.by = "Open MPI";
    return launch;
  }

  [[nodiscard]] Launch from_slurm() const {
    Launch launch;
    place(launch, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "");
    const int64_t node = find_number("SLURM_NODEID", 0, kMostRanks).value_or(0);
    if (const auto tasks = text("SLURM_STEP_TASKS_PER_NODE")) {
      launch.local_ranks = tasks_of_node(*tasks, node);
      USER_CHECK(launch.local_rank < launch.local_ranks && launch.local_ranks <= launch.ranks,
                 "the environment variable SLURM_STEP_TASKS_PER_NODE is '{}', which does not fit task {} of node {} of "
                 "{} tasks",
                 *tasks, launch.local_rank, node, launch.ranks);
    }
    if (launch.local_ranks < launch.ranks)
      launch.address = first_node(text("SLURM_STEP_NODELIST").value_or(text("SLURM_JOB_NODELIST").value_or("")));
    if (const auto job = text("SLURM_JOB_ID")) launch.port = port_of(*job + "." + text("SLURM_STEP_ID").value_or("0"));
    meet_at(launch, "MASTER_ADDR", "MASTER_PORT", "SLURM_STEP_NUM_TASKS");
    launch.by = "Slurm";
    return launch;
  }

  // A port that all ranks of a job come to and other jobs rarely do, below those that the system gives away.
  static int port_of(const std::string& job) {
    return 15000 + static_cast<int>(hash_bytes(std::as_bytes(std::span(job))) % 10000);
  }

  // "4(x2),3": 4 tasks on each of 2 nodes and 3 on the next; of that the `node`th, 0 where there is none.
  static int64_t tasks_of_node(const std::string& text, int64_t node) {
    for (const std::string& item : split(text, ',')) {
      int64_t tasks = 0, nodes = 1;
      const char* end = item.data() + item.size();
      const auto [rest, error] = std::from_chars(item.data(), end, tasks);
      if (error != std::errc()) return 0;
      if (end - rest > 2 && rest[0] == '(' && rest[1] == 'x') std::from_chars(rest + 2, end, nodes);
      if (node < nodes) return tasks;
      node -= nodes;
    }
    return 0;
  }
  // Of "a[07-09,11],b" a07.
  static std::string first_node(const std::string& list) {
    const size_t bracket = list.find('['), comma = list.find(',');
    if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
    const size_t close = list.find(']', bracket), end = list.find_first_of("-,]", bracket);
    if (close == std::string::npos || end == std::string::npos) return "";
    const std::string behind = list.substr(close + 1);
    return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) + behind.substr(0, behind.find(','));
  }

  const std::function<const char*(const char*)>& variable_;
};

}  // namespace

Launch launch_of(const std::function<const char*(const char*)>& variable) { return LaunchReader(variable).read(); }

}  // namespace stepc
