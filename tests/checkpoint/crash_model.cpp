#include "tests/checkpoint/crash_model.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <set>

#include "base/check.h"

namespace stepc {

namespace fs = std::filesystem;
using Kind = FileChange::Kind;

int JournalledFiles::note(FileChange change, const std::function<int()>& run) {
  if (refuse) {
    if (const int error = refuse(journal.size())) {
      refused = change.kind;
      return error;
    }
  }
  const int error = run();
  if (error == 0) journal.push_back(std::move(change));
  return error;
}

int JournalledFiles::create(const fs::path& path, int& descriptor) {
  descriptor = -1;
  return note({Kind::kCreate, path, {}, {}}, [&] {
    const int error = FileSystem::create(path, descriptor);
    if (error == 0) open_[descriptor] = path;
    return error;
  });
}

int JournalledFiles::write(int descriptor, std::span<const std::byte> bytes) {
  return note({Kind::kWrite, open_.at(descriptor), {}, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}},
              [&] { return FileSystem::write(descriptor, bytes); });
}

int JournalledFiles::sync(int descriptor) {
  return note({Kind::kSync, open_.at(descriptor), {}, {}}, [] { return 0; });
}

int JournalledFiles::close(int descriptor) {
  open_.erase(descriptor);
  return FileSystem::close(descriptor);
}

int JournalledFiles::sync_path(const fs::path& path) {
  return note({Kind::kSyncPath, path, {}, {}}, [] { return 0; });
}

int JournalledFiles::rename(const fs::path& from, const fs::path& to) {
  return note({Kind::kRename, from, to, {}}, [&] {
    for (auto& [descriptor, path] : open_)
      if (path == from) path = to;
    return FileSystem::rename(from, to);
  });
}

int JournalledFiles::exchange(const fs::path& one, const fs::path& other) {
  if (!can_exchange) return EINVAL;
  return note({Kind::kExchange, one, other, {}}, [&] { return FileSystem::exchange(one, other); });
}

int JournalledFiles::link(const fs::path& from, const fs::path& to) {
  return note({Kind::kLink, from, to, {}}, [&] { return FileSystem::link(from, to); });
}

int JournalledFiles::unlink(const fs::path& path) {
  return note({Kind::kUnlink, path, {}, {}}, [&] { return FileSystem::unlink(path); });
}

int JournalledFiles::make_directory(const fs::path& path) {
  return note({Kind::kMakeDirectory, path, {}, {}}, [&] { return FileSystem::make_directory(path); });
}

int JournalledFiles::remove_directory(const fs::path& path) {
  return note({Kind::kRemoveDirectory, path, {}, {}}, [&] { return FileSystem::remove_directory(path); });
}

DiskStates::DiskStates(fs::path root) : root_(std::move(root)), top_(std::make_shared<Node>()) {
  top_->is_directory = true;
}

std::shared_ptr<DiskStates::Node> DiskStates::find(const fs::path& path) const {
  std::shared_ptr<Node> node = top_;
  const fs::path relative = path.lexically_relative(root_);
  if (relative == ".") return node;
  for (const fs::path& part : relative) {
    const auto inner = node->names.find(part.string());
    INTERNAL_CHECK(inner != node->names.end(), "{} is not on the modelled disk", path.string());
    node = inner->second;
  }
  return node;
}

DiskStates::Node& DiskStates::directory_of(const fs::path& path) const { return *find(path.parent_path()); }

void DiskStates::apply_to(Names& names, const NameChange& change) {
  switch (change.kind) {
    case NameChange::Kind::kSet:
      names[change.name] = change.node;
      break;
    case NameChange::Kind::kRemove:
      names.erase(change.name);
      break;
    case NameChange::Kind::kMove:
      names.erase(change.name);
      names[change.to] = change.node;
      break;
    case NameChange::Kind::kSwap:
      names[change.name] = change.other;
      names[change.to] = change.node;
      break;
  }
}

void DiskStates::change_name(const fs::path& path, NameChange change) {
  Node& directory = directory_of(path);
  apply_to(directory.names, change);
  directory.pending.push_back(std::move(change));
}

void DiskStates::apply(const FileChange& change) {
  const std::string name = change.path.filename().string();
  const std::string to = change.to.filename().string();
  switch (change.kind) {
    case Kind::kCreate:
    case Kind::kMakeDirectory: {
      auto node = std::make_shared<Node>();
      node->is_directory = change.kind == Kind::kMakeDirectory;
      change_name(change.path, {NameChange::Kind::kSet, name, {}, node, {}});
      break;
    }
    case Kind::kLink:
      change_name(change.to, {NameChange::Kind::kSet, to, {}, find(change.path), {}});
      break;
    case Kind::kWrite:
      find(change.path)->current += change.bytes;
      break;
    case Kind::kSync:
    case Kind::kSyncPath: {
      Node& node = *find(change.path);
      node.durable = node.current;
      node.durable_names = node.names;
      node.pending.clear();
      break;
    }
    case Kind::kRename:
      INTERNAL_CHECK(change.path.parent_path() == change.to.parent_path(), "renamed between directories");
      change_name(change.path, {NameChange::Kind::kMove, name, to, find(change.path), {}});
      break;
    case Kind::kExchange:
      change_name(change.path, {NameChange::Kind::kSwap, name, to, find(change.path), find(change.to)});
      break;
    case Kind::kUnlink:
    case Kind::kRemoveDirectory:
      change_name(change.path, {NameChange::Kind::kRemove, name, {}, {}, {}});
      break;
  }
}

void DiskStates::choose(const Node& node, const std::string& path, const Choose& choice, Tree& tree) {
  if (!node.is_directory) {
    std::string& content = tree[path] = node.durable;
    if (node.current == node.durable) return;
    constexpr size_t kLost = 0, kHalf = 1, kZeros = 2, kChoices = 4;
    const size_t chosen = choice(kChoices);
    if (chosen == kLost) return;
    content = node.current;
    const size_t half = (node.durable.size() + node.current.size()) / 2;
    if (chosen == kHalf) content.resize(half);
    if (chosen == kZeros) std::fill(content.begin() + static_cast<std::ptrdiff_t>(half), content.end(), '\0');
    return;
  }
  if (!path.empty()) tree[path + "/"] = "";
  Names names = node.durable_names;
  for (const NameChange& change : node.pending)
    if (choice(2) == 1) apply_to(names, change);
  for (const auto& [name, inner] : names) choose(*inner, (std::filesystem::path(path) / name).string(), choice, tree);
}

std::vector<DiskStates::Tree> DiskStates::after_crash(size_t most, std::mt19937& random) const {
  std::set<Tree> found;
  // Every run of choose() asks the same first questions as long as it gets the same answers: count through the answers.
  std::vector<size_t> answers, options;
  while (found.size() <= most) {
    size_t asked = 0;
    Tree tree;
    choose(
        *top_, "",
        [&](size_t count) {
          if (asked == answers.size()) {
            answers.push_back(0);
            options.push_back(count);
          }
          return answers[asked++];
        },
        tree);
    found.insert(std::move(tree));
    while (!answers.empty() && answers.back() + 1 == options.back()) {
      answers.pop_back();
      options.pop_back();
    }
    if (answers.empty()) return {found.begin(), found.end()};
    ++answers.back();
  }
  found.clear();
  const auto draw = [&](size_t count) { return static_cast<size_t>(random() % count); };
  for (size_t i = 0; i < 2 * most && found.size() < most; ++i) {
    Tree tree;
    choose(*top_, "", draw, tree);
    found.insert(std::move(tree));
  }
  return {found.begin(), found.end()};
}

void materialize(const DiskStates::Tree& tree, const fs::path& directory) {
  fs::remove_all(directory);
  fs::create_directories(directory);
  for (const auto& [path, content] : tree) {
    if (path.ends_with('/')) {
      fs::create_directories(directory / path.substr(0, path.size() - 1));
    } else {
      std::ofstream(directory / path, std::ios::binary) << content;
    }
  }
}

}  // namespace stepc
