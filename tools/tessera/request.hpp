// A request is what `tessera plan` is asked: a model or a number of parameters, how it is trained, and which question
// about it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "machine/work.hpp"
#include "models/gpt.hpp"
#include "models/model.hpp"
#include "models/vision.hpp"
#include "options.hpp"
#include "tessera/device/device.hpp"
#include "tessera/plan/compile.hpp"
#include "tessera/plan/schedule.hpp"
#include "tessera/trainer/mesh_option.hpp"
#include "time_options.hpp"

namespace tools {

enum class OptimizerKind { adamw, adamw8bit, sgd, muon };

// One way to train it.
struct Setting {
  tessera::plan::PlanOptions options;  // activations: filled in from the rest
  bool activation_checkpointing = false;
  std::size_t batch = 1;  // sequences of a rank and micro-batch, or a perceptron's samples
  std::size_t seq = 0;    // tokens of a sequence; 0: no tokens
  OptimizerKind optimizer = OptimizerKind::adamw;
  tessera::DeviceKind device = tessera::DeviceKind::cpu;  // whose workspace the optimizer takes
  tessera::trainer::ScheduleOptions schedule = {};        // of stages along the mesh's axis pipeline
  std::size_t stages() const { return options.mesh ? options.mesh->size(tessera::Axis::pipeline) : 1; }
  std::size_t contexts() const { return options.mesh ? options.mesh->size(tessera::Axis::context) : 1; }
  tessera::plan::ScheduleShape schedule_shape() const { return {stages(), options.micro_batches, schedule.chunks}; }
};

class Subject {
 public:
  static Subject gpt(std::string name, const models::GptShape& shape);
  static Subject vision(const models::VisionShape& shape);
  static Subject llama(const models::LlamaShape& shape);
  static Subject perceptron(const std::vector<std::size_t>& widths);
  static Subject file(const std::filesystem::path& path);  // throws DataError

  const std::string& name() const { return name_; }
  bool counts_activations() const { return is<models::GptShape>() || sees_images(); }
  bool recomputes() const { return has_tokens(); }  // has a form with recomputation
  std::size_t seq() const;                          // tokens of a sequence, where it has them by itself; else 0
  // Forward windows leave to backward ones what may go to the host's memory: blocks, what they are recomputed from, and
  // stages that see images, all that they keep.
  bool saves(const Setting& setting) const;
  bool has_tokens() const { return is<models::GptShape>() || is<models::LlamaShape>(); }
  bool has_slices() const { return is<models::GptShape>(); }  // over the axis tensor, and parts over context
  bool has_stages() const { return is<models::GptShape>(); }  // over the axis pipeline
  std::size_t layers() const { return std::get<models::GptShape>(shape_).layers; }
  std::size_t heads() const { return std::get<models::GptShape>(shape_).heads; }
  bool sees_images() const { return is<models::VisionShape>(); }

  models::Model model(const Setting& setting) const;
  // The plans of all stages, where the setting's mesh has some.
  std::vector<tessera::plan::RankRole> stages(const Setting& setting) const;
  // 0 where they are not counted.
  tessera::Bytes activations(const Setting& setting) const;
  // Returns what windows compute, as the model's own pass counts it; empty where that is worked out from shapes.
  std::map<WindowKey, Work> counted_work(const Setting& setting) const;

 private:
  using Shape = std::variant<models::GptShape, models::VisionShape, models::LlamaShape, models::Model>;
  template <typename Kind>
  bool is() const {
    return std::holds_alternative<Kind>(shape_);
  }
  Subject(std::string name, Shape shape) : name_(std::move(name)), shape_(std::move(shape)) {}
  models::VisionShape vision_shape(const Setting& setting) const;
  models::GptShape gpt_shape(const Setting& setting) const;

  std::string name_;
  Shape shape_;
};

// Writes down which tensors the setting's optimizer sees whole.
void note_whole_tensors(std::vector<tessera::plan::UnitSpec>& units, const Setting& setting);

// With the subject's activations.
tessera::plan::CompileInput compile_input(const Subject& subject, const Setting& setting,
                                          const std::vector<tessera::plan::StateSpec>& optimizer_states);

// Freedom says what --fit searches; the rest stays as it is in the setting.
struct Freedom {
  bool strategy = true;
  bool replicas = true;  // every divisor of the ranks but 1 and themselves; hsdp and hfsdp only
  bool prefetch = true;  // 1, 2 and 0 units ahead; where parameters are sharded
  bool reshard = true;   // there too
  bool checkpointing = true;
  bool batch = true;    // powers of two up to most_batch
  bool offload = true;  // of as few units as will do, where nothing fits without; where to is said
  bool meshes = false;  // with slices along tensor and stages along pipeline, too
};
inline constexpr std::size_t most_batch = 4096;

struct PlanRequest {
  // One of these two.
  std::optional<Subject> subject;
  std::optional<double> parameters;

  Setting setting;
  std::filesystem::path disk;  // as given: nothing is written there
  bool compare = false;
  std::optional<tessera::Bytes> fit;
  std::optional<tessera::Bytes> host_memory;  // of a rank, for what --fit moves; none: as much as that takes
  Freedom freedom;                            // of --fit: what the command line did not settle
  TimeRequest time;
  bool draw = false;
  bool json = false;
};

// `arguments`: what follows `tessera plan`. Empty when only the help page was asked for, and printed. Throws
// OptionError; DataError for the file of --units.
std::optional<PlanRequest> parse_plan_request(std::vector<std::string> arguments);

std::vector<tessera::plan::StateSpec> optimizer_states(OptimizerKind kind);

}  // namespace tools
