// Aliases in a safetensors file's metadata: as Python's save_model() writes them, a name that shares a stored tensor is
// a key there, and the tensor's name its value. Metadata has other entries too; an alias is what names a tensor.
#pragma once

#include <map>
#include <string>

namespace tessera::checkpoint {

// `is_stored`: whether a name is a tensor's.
template <typename IsStored>
std::map<std::string, std::string> find_aliases(const std::map<std::string, std::string>& metadata,
                                                IsStored is_stored) {
  std::map<std::string, std::string> aliases;
  for (const auto& [name, stored] : metadata) {
    if (is_stored(stored) && !is_stored(name)) aliases.emplace(name, stored);
  }
  return aliases;
}

}  // namespace tessera::checkpoint
