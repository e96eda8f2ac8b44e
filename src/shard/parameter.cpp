// Parameters and buffers own no bytes: only facts.
#include "tessera/shard/parameter.hpp"

#include <utility>

#include "tessera/shard/buffer.hpp"

namespace tessera {

Parameter::Parameter(Shape shape, Initial initial, ParameterOptions options)
    : shape_(std::move(shape)), elements_(element_count(shape_)), initial_(initial), options_(options) {}

Buffer::Buffer(Shape shape, Initial initial)
    : shape_(std::move(shape)), elements_(element_count(shape_)), initial_(initial) {}

}  // namespace tessera
