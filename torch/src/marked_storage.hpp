// Storages of tensors that have a mark in place of memory: they are shapes so far, or hidden.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera::torch {

// The mark, or an ordinary storage's memory. Not by storage().data_ptr(), which libtorch 2.x lets refuse_others()
// close.
template <typename StorageImpl>
const at::DataPtr& kept_by(StorageImpl& storage) {
  if constexpr (requires { storage._mutable_data_ptr_no_checks(); }) {
    return storage._mutable_data_ptr_no_checks();
  } else {
    return storage.data_ptr();
  }
}
inline const at::DataPtr& kept_by(const at::Tensor& tensor) {
  return kept_by(*tensor.storage().unsafeGetStorageImpl());
}

// Whoever asks a tensor for its memory gets `text` as an error. Libtorch 1.13 has no such thing: there
// data_ptr<float>() throws with words of its own, and data_ptr() is null.
template <typename StorageImpl>
void refuse_others(StorageImpl& storage, [[maybe_unused]] const std::string& text) {
  if constexpr (requires { storage.release_data_and_set_meta_custom_data_ptr_error_msg_(text); }) {
    storage.release_data_and_set_meta_custom_data_ptr_error_msg_(text);
  }
}

}  // namespace tessera::torch
