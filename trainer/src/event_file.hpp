// The files that TensorBoard reads: records of events, each a step's figures, which TensorBoard draws by name.
//
// A record is its length in 64 bits, a checksum of that, an event, and a checksum of it (TFRecord: CRC-32C, turned by
// 15 bits and shifted by a constant). An event is a message of protocol buffers (tensorflow/core/util/event.proto), of
// which a few fields are enough.
#pragma once

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "json/json.hpp"

namespace tessera::trainer {

class EventFile {
 public:
  // Makes a file of its own in the directory, which is made where it is missing: what stands there already is other
  // runs', or this one's before it was resumed, and TensorBoard draws it, too. Throws DataError naming the path.
  explicit EventFile(const std::filesystem::path& directory);

  // Steps from `step` on are taken again: TensorBoard forgets what earlier files of the directory say of them.
  void begin_at(std::size_t step);

  // Every number of the object, and of the objects in it (as "outer/inner"). On its way to the file system when this
  // returns. Throws DataError, when the disk is full for example.
  void write(std::size_t step, const tools::Json& metrics);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void put(const std::string& event);

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace tessera::trainer
