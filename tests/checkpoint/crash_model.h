// What a disk may hold after a crash. JournalledFiles lets operations through to real files (without syncing) and
// writes them down; DiskStates replays that journal into every content that a machine which goes down in between may
// wake up with: of what was not synced, each file's bytes are lost, cut short, or there as zeros, and each directory
// has any selection of its changes.
//
//   create a, write a, [crash]      a is missing, empty, half, zeros or whole
//   sync a, rename a b, [crash]     a is there or b, never neither, if a's name was synced
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.h"

namespace stepc {

struct FileChange {
  enum class Kind {
    kCreate,
    kWrite,
    kSync,
    kSyncPath,
    kRename,
    kExchange,
    kLink,
    kUnlink,
    kMakeDirectory,
    kRemoveDirectory
  };
  Kind kind;
  std::filesystem::path path, to;
  std::string bytes;
};

class JournalledFiles : public FileSystem {
 public:
  std::vector<FileChange> journal;
  // Called with the number of operations so far; an errno other than 0 refuses the next one.
  std::function<int(size_t)> refuse;
  FileChange::Kind refused = {};  // what was refused last
  bool can_exchange = true;

  int create(const std::filesystem::path& path, int& descriptor) override;
  int write(int descriptor, std::span<const std::byte> bytes) override;
  int sync(int descriptor) override;
  int close(int descriptor) override;
  int sync_path(const std::filesystem::path& path) override;
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  int exchange(const std::filesystem::path& one, const std::filesystem::path& other) override;
  int link(const std::filesystem::path& from, const std::filesystem::path& to) override;
  int unlink(const std::filesystem::path& path) override;
  int make_directory(const std::filesystem::path& path) override;
  int remove_directory(const std::filesystem::path& path) override;

 private:
  int note(FileChange change, const std::function<int()>& run);

  std::map<int, std::filesystem::path> open_;
};

// The disk's state along a journal. Starts with an empty root directory.
class DiskStates {
 public:
  explicit DiskStates(std::filesystem::path root);
  void apply(const FileChange& change);

  using Tree = std::map<std::string, std::string>;  // relative path -> content; "name/" -> "" for a directory
  // Contents that the disk may have if the machine goes down now: all where they are at most `most`, else that many
  // drawn at random.
  std::vector<Tree> after_crash(size_t most, std::mt19937& random) const;

 private:
  struct Node;
  struct NameChange {
    enum class Kind { kSet, kRemove, kMove, kSwap } kind;
    std::string name, to;
    std::shared_ptr<Node> node, other;
  };
  using Names = std::map<std::string, std::shared_ptr<Node>>;
  struct Node {
    bool is_directory = false;
    std::string durable, current;  // a file's bytes
    Names durable_names, names;    // a directory's
    std::vector<NameChange> pending;
  };
  // One choice a crash makes, among `options`; the caller says which.
  using Choose = std::function<size_t(size_t options)>;

  Node& directory_of(const std::filesystem::path& path) const;
  std::shared_ptr<Node> find(const std::filesystem::path& path) const;
  void change_name(const std::filesystem::path& path, NameChange change);
  static void apply_to(Names& names, const NameChange& change);
  static void choose(const Node& node, const std::string& path, const Choose& choice, Tree& tree);

  std::filesystem::path root_;
  std::shared_ptr<Node> top_;
};

// Makes `directory` hold exactly the tree.
void materialize(const DiskStates::Tree& tree, const std::filesystem::path& directory);

}  // namespace stepc
