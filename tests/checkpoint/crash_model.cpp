// A tree of folders and files, as inodes: a renamed folder takes along what is in it.
#include "crash_model.hpp"

#include <algorithm>
#include <memory>

namespace crash_model {

namespace {

using watched::Call;
using watched::Operation;

struct Node {
  std::map<std::string, std::shared_ptr<Node>> entries = {};  // of a folder
  std::string bytes = {};                                     // of a file
  bool folder = true;
};

std::string parent_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}
std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }

class Tree {
 public:
  explicit Tree(const Files& files) {
    for (const auto& [path, bytes] : files) {
      std::shared_ptr<Node> folder = root_;
      for (std::size_t begin = 0, end = 0; (end = path.find('/', begin)) != std::string::npos; begin = end + 1) {
        auto& next = folder->entries[path.substr(begin, end - begin)];
        if (!next) next = std::make_shared<Node>();
        folder = next;
      }
      folder->entries[name_of(path)] = std::make_shared<Node>(Node{.bytes = bytes, .folder = false});
    }
  }

  std::shared_ptr<Node> find(const std::string& path) const {
    std::shared_ptr<Node> node = root_;
    for (std::size_t begin = 0; node && begin < path.size();) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      const auto found = node->entries.find(path.substr(begin, end - begin));
      node = found == node->entries.end() ? nullptr : found->second;
      begin = end + 1;
    }
    return node;
  }

  Files files() const {
    Files result;
    collect("", *root_, result);
    return result;
  }

  void enter(const std::string& path, std::shared_ptr<Node> node) {
    if (const auto folder = find(parent_of(path))) folder->entries[name_of(path)] = std::move(node);
  }
  void leave(const std::string& path) {
    if (const auto folder = find(parent_of(path))) folder->entries.erase(name_of(path));
  }

 private:
  static void collect(const std::string& prefix, const Node& node, Files& result) {
    for (const auto& [name, child] : node.entries) {
      if (child->folder) {
        collect(prefix + name + "/", *child, result);
      } else {
        result[prefix + name] = child->bytes;
      }
    }
  }

  std::shared_ptr<Node> root_ = std::make_shared<Node>();
};

void write(Node& file, const Operation& operation) {
  if (file.bytes.size() < operation.offset + operation.bytes.size()) {
    file.bytes.resize(operation.offset + operation.bytes.size());
  }
  std::copy(operation.bytes.begin(), operation.bytes.end(),
            file.bytes.begin() + static_cast<std::ptrdiff_t>(operation.offset));
}

bool changes_entries(const Operation& operation) {
  return operation.call == Call::make_folder || operation.call == Call::create || operation.call == Call::rename ||
         operation.call == Call::remove;
}

// The tree that the running system sees, and the tree of what is on the device: nodes are found by the names that they
// have in the first, and changed in the second.
class Replay {
 public:
  explicit Replay(const Files& before) : seen_(before), kept_(before) { pair("", seen_.find(""), kept_.find("")); }

  void step(const Operation& operation, bool lost) {
    switch (operation.call) {
      case Call::make_folder: return add(operation.path, true, lost);
      case Call::create: return add(operation.path, false, lost);
      case Call::write:
        if (!lost) write(*kept(operation.path), operation);
        return;
      case Call::resize:
        if (!lost) kept(operation.path)->bytes.resize(operation.size);
        return;
      case Call::rename: return move(operation, lost);
      case Call::remove: return drop(operation, lost);
      case Call::flush: return;
    }
  }

  Files files() const { return kept_.files(); }

 private:
  void pair(const std::string& path, const std::shared_ptr<Node>& seen, const std::shared_ptr<Node>& kept) {
    counterpart_[seen.get()] = kept;
    for (const auto& [name, child] : seen->entries) pair(path + "/" + name, child, kept->entries.at(name));
  }

  std::shared_ptr<Node> kept(const std::string& path) { return counterpart_.at(seen_.find(path).get()); }

  void add(const std::string& path, bool folder, bool lost) {
    const auto seen = std::make_shared<Node>(Node{.folder = folder});
    const auto kept_node = std::make_shared<Node>(Node{.folder = folder});
    counterpart_[seen.get()] = kept_node;
    if (!lost) kept(parent_of(path))->entries[name_of(path)] = kept_node;
    seen_.enter(path, seen);
  }

  void move(const Operation& operation, bool lost) {
    const auto node = seen_.find(operation.path);
    if (!lost) {
      auto& folder = kept(parent_of(operation.path))->entries;
      folder.erase(name_of(operation.path));
      kept(parent_of(operation.to))->entries[name_of(operation.to)] = counterpart_.at(node.get());
    }
    seen_.leave(operation.path);
    seen_.enter(operation.to, node);
  }

  void drop(const Operation& operation, bool lost) {
    if (!lost) kept(parent_of(operation.path))->entries.erase(name_of(operation.path));
    removed_.push_back(seen_.find(operation.path));  // its address must stay its own
    seen_.leave(operation.path);
  }

  Tree seen_;
  Tree kept_;
  std::map<const Node*, std::shared_ptr<Node>> counterpart_;
  std::vector<std::shared_ptr<Node>> removed_;
};

}  // namespace

Device::Device(Files before, std::span<const Operation> operations)
    : before_(std::move(before)), operations_(operations) {}

std::vector<std::size_t> Device::unsure(std::size_t count) const {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < count; ++i) {
    const Operation& operation = operations_[i];
    if (operation.call == Call::flush) continue;
    // A file keeps its name from its creation to its last flush; a folder's entries are flushed under its own.
    const std::string flushed_by = changes_entries(operation) ? parent_of(operation.path) : operation.path;
    const auto sure = [&](const Operation& later) { return later.call == Call::flush && later.path == flushed_by; };
    const auto rest = operations_.subspan(i + 1, count - i - 1);
    if (std::none_of(rest.begin(), rest.end(), sure)) result.push_back(i);
  }
  return result;
}

Files Device::after(std::size_t count, const std::vector<bool>& lost) const {
  Replay replay(before_);
  for (std::size_t i = 0; i < count; ++i) replay.step(operations_[i], lost[i]);
  return replay.files();
}

}  // namespace crash_model
