// A CPU stream without a thread: every task runs on the host thread that submits it, before submit() returns.
#include <utility>

#include "device/cpu_stream.hpp"

namespace tessera::device {
namespace {

class ImmediateStream final : public CpuStream {
 public:
  using CpuStream::CpuStream;

  void submit(Task task) override {
    count_submission();
    run_task(task);
  }
};

}  // namespace

std::unique_ptr<CpuStream> make_immediate_stream(StreamOptions options, std::function<void()> prepare) {
  return std::make_unique<ImmediateStream>(std::move(options), std::move(prepare));
}

}  // namespace tessera::device
