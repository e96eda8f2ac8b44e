// What a collective's arguments must satisfy, whatever the backend. Violations are UsageErrors at the call.
#pragma once

#include <span>

#include "comm/signature.hpp"
#include "tessera/comm/communicator.hpp"
#include "tessera/device/stream.hpp"

namespace tessera::comm {

// A collective on an immediate stream would block the host until every peer has come.
void check_stream(const Communicator& communicator, const Stream& stream, const Signature& signature);

void check(const Communicator& communicator, std::span<const AllGather> segments);
void check(const Communicator& communicator, std::span<const ReduceScatter> segments);
void check(const Communicator& communicator, const AllReduce& operation);
void check(const Communicator& communicator, const Broadcast& operation);
void check(const Communicator& communicator, const Barrier& operation);

}  // namespace tessera::comm
