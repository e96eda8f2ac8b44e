// The rules by which users name units.
#include "tessera/torch/units.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "tessera/base/error.hpp"

namespace tessera::torch {

namespace {

std::string joined(const std::string& path, const std::string& child) {
  return path.empty() ? child : fmt::format("{}.{}", path, child);
}

// The submodule at `path`. Throws UsageError that names the children of the last one that is there.
const ::torch::nn::Module& submodule_at(const ::torch::nn::Module& root, const std::string& path) {
  const ::torch::nn::Module* at = &root;
  std::size_t begin = 0;
  while (begin < path.size()) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    const auto children = at->named_children();
    const auto* next = children.find(path.substr(begin, end - begin));
    if (next == nullptr) {
      throw UsageError(fmt::format("there is no submodule \"{}\": {} has {}", path,
                                   begin == 0 ? "the module" : fmt::format("\"{}\"", path.substr(0, begin - 1)),
                                   fmt::join(children.keys(), ", ")));
    }
    at = next->get();
    begin = end + 1;
  }
  return *at;
}

}  // namespace

Units children_of(std::string path) {
  return [path = std::move(path)](const ::torch::nn::Module& root) {
    std::vector<std::string> paths;
    for (const std::string& child : submodule_at(root, path).named_children().keys()) {
      paths.push_back(joined(path, child));
    }
    return paths;
  };
}

Units named(std::vector<std::string> paths) {
  return [paths = std::move(paths)](const ::torch::nn::Module& root) {
    for (const std::string& path : paths) submodule_at(root, path);
    return paths;
  };
}

Units where(std::function<bool(std::string_view, const ::torch::nn::Module&)> predicate) {
  return [predicate = std::move(predicate)](const ::torch::nn::Module& root) {
    std::vector<std::string> paths;
    std::function<void(const std::string&, const ::torch::nn::Module&)> visit = [&](const std::string& path,
                                                                                    const auto& module) {
      for (const auto& child : module.named_children()) {
        const std::string below = joined(path, child.key());
        if (predicate(below, *child.value())) paths.push_back(below);
        visit(below, *child.value());
      }
    };
    visit("", root);
    return paths;
  };
}

}  // namespace tessera::torch
