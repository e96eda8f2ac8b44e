// The plan of a training step: every operation of every segment with its stream, the buffer ranges that it reads and
// writes, and its waits. Immutable data, the same for every rank of a group: the rank stays symbolic in the ranges.
// Made by compile(), and read by execute (shard/), verify, memory, simulate and draw.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/bytes.hpp"
#include "tessera/base/dtype.hpp"
#include "tessera/plan/granules.hpp"
#include "tessera/plan/layout.hpp"
#include "tessera/plan/program.hpp"
#include "tessera/plan/strategy.hpp"
#include "tessera/plan/whole.hpp"

#pragma GCC visibility push(default)

namespace tessera::plan {

// ---- memory ----

// A category says what bytes are for (docs/numerics.md). Each is a page-aligned region of the arena.
enum class Category {
  parameters,       // masters, and whole parameters
  gradients,        // reduced fp32 gradients
  optimizer,        // the optimizer's states
  accumulation,     // whole fp32 gradients that add up on the rank
  parameter_slots,  // gathered parameters; units take turns
  gradient_slots,   // unreduced gradients; units take turns
  staging,          // what is there for a moment: gradients in the type in which they travel, where that is another
                    // than they are written in; states that the host keeps; tensors that an optimizer sees whole
  buffers,          // state that is not trained
  activations,      // what the user's layers keep, in a block that they divide up themselves, and for windows (saved)
  scalars,          // norms, step count, flags
  collectives,      // staging of collectives, where the backend needs any
  // Memory of the host, and last, so that the device's is one stretch.
  offloaded,    // what units keep there (Offload), and what passes on its way from the disk and back
  checkpoints,  // staging of saves and loads, and the copy of the shards that is written in the background
  on_disk,      // likewise, in a file: behind all memory
};
inline constexpr std::size_t category_count = 14;
std::string_view to_string(Category category);

struct Buffer {
  std::string name;  // "blocks.3.master", "p0"
  Category category;
  MemorySpace space = MemorySpace::device;
  Bytes size;
  Bytes offset;  // all spaces one behind the other: the device's, the host's, the disk's
};

// A role says what values are for. Operations name their operands by it.
enum class Role {
  master,          // what this rank updates; as much as it keeps of the parameters where windows read it
  kept,            // of parameters that windows gather: the masters, or a copy in the type in which they travel (hfsdp)
  parameters,      // what windows read: a slot (fsdp), the masters (others, of one type), a whole copy (others else)
  encoded,         // what travels to windows, where that is of another type than they read (Precision::gather): a slot
  resharded,       // in the type in which they travel, between two gathers of a pass: sharded over fewer axes
                   // (Resharding)
  gradient_slot,   // what backward windows write
  staging,         // the same in the wire's type, where that is another
  accumulation,    // whole fp32 gradient, where gradients add up before the reduction
  gradient,        // reduced: what the strategy keeps of it; at least what the first of several reductions leaves, one
                   // for each axis, and whole where sums of micro-batches stand. fp32, but in the gradient's own type
                   // where a step has one of them and nobody adds to it, which is then the slot, too
  state,           // of the optimizer, several: what this rank updates
  anchor,          // where there are outer steps, this rank's shard: the masters after the last one,
  outer_momentum,  // … the outer optimizer's momentum,
  outer_mean,      // … and while one runs the mean of the masters
  untrained,       // BufferSpecs one after the other, each aligned as parameters are
  state_slot,      // of states that stand in the host's memory or on disk: where an update has them
  master_slot,     // the same of masters, frozen ones too; what is made from masters is made from it
  widened,         // masters of 16 bits in fp32, a stretch at a time, while an update works on it
  host_gradient,   // of what the host's processors update: the reduced gradient in its memory,
  host_rounded,    // … and what masters are rounded to there, on the way to windows
  before,          // of what they update ahead of the norm (Offload::ahead), several: masters, then each state, as they
                   // were before the step, until that is known
  saved,           // what forward windows leave to backward ones (UnitSpec::saved): a place, or where it stands in the
                   // host's memory in between, a slot
  saved_home,      // there
  direction,       // in an update, several: what this rank's shares bring to tensors that are seen whole; and in the
                   // first what comes back
  whole,           // of a group of units, its first one's: the tensors that this rank owns
  workspace,       // likewise: of the optimizer, beside them
  scalars,         // of a program: kernels::StepScalars
  host_scalars,    // likewise, as the host's processors have them
  supposed,        // likewise, as they will be if the norm changes nothing
  norms,           // of a program, by training rank: fp64 of each unit that it trains, and the rank's kernels::StepPart
  collected,       // what ranks bring to the collective of a window, one after the other; of a message, one of its
                   // buffers
};
inline constexpr std::size_t role_count = 30;
std::string_view to_string(Role role);

// Elements of a stretch of Role::widened: whole blocks of any state.
inline constexpr std::size_t widened_elements = std::size_t{1} << 20;

inline constexpr std::size_t no_buffer = static_cast<std::size_t>(-1);

// A Content is what a unit has in a buffer, which may be others', too: they take turns in slots, and some roles share a
// place.
struct Content {
  std::size_t buffer = no_buffer;  // in Plan::buffers; no_buffer where the strategy has none
  DType type = DType::fp32;
  AxisSet over = {};  // its placement: sharded over these. What is sharded over more is a view of its place there
  MemorySpace space = MemorySpace::device;
  std::size_t block = 1;  // elements of the unit that share a value (StateSpec)
  // A state of some tensors (StateSpec::elementwise) has no value for elements of the trained part before this, and the
  // first of the others that a rank holds stands at the buffer's begin. All that it holds counts as its own.
  std::size_t begin = 0;
  // The bytes of so many elements, which are whole blocks.
  Bytes size(std::size_t elements) const { return bytes_of(type, elements / block); }
  bool exists() const { return buffer != no_buffer; }
  friend bool operator==(const Content&, const Content&) = default;
};

// Bytes of one buffer as the rank at some coordinates sees them: from `offset`, and by a stride for each axis from
// there, `size` of them. A stride of 0 is the same place along that axis; along an axis of one rank it is always 0.
struct Range {
  std::size_t buffer;
  Bytes offset;
  Bytes size;
  std::array<Bytes, axis_count> strides = {};  // by Axis
  friend bool operator==(const Range&, const Range&) = default;
};

enum class AccessMode {
  read,
  write,    // every byte of the range, whatever was there
  update,   // reads, then writes
  discard,  // the content ends here; in the poison test mode it is overwritten
};

struct Access {
  Range range;
  AccessMode mode;
  // Whose content: the unit that holds a slot. A read under another tenant's content is an error that the verifier
  // finds.
  std::size_t tenant;
  Role role;
  std::size_t state = 0;  // of states, their slots, values before a step, and directions: which
};

// ---- order ----

// fetch: from the host's memory or the disk to the device's memory; evict: back; host: the host's processors, on what
// stands in its memory; overlap: collectives of windows that go on meanwhile; the last four: messages of forward
// windows, and of backward ones.
enum class StreamId { compute, gather, reduce, fetch, evict, host, overlap, send, receive, send_back, receive_back };
inline constexpr std::size_t stream_count = 11;
constexpr bool is_transferring(StreamId stream) { return stream == StreamId::fetch || stream == StreamId::evict; }
constexpr StreamId stream_of_message(CollectiveKind kind, WindowKind window) {
  const bool back = window == WindowKind::backward;
  if (kind == CollectiveKind::send) return back ? StreamId::send_back : StreamId::send;
  return back ? StreamId::receive_back : StreamId::receive;
}
std::string_view to_string(StreamId stream);

enum class WaitType {
  data,      // a hazard on a buffer: the stream waits for the event's latest record
  order,     // collectives: launched after, on every rank; nothing waits for completion
  throttle,  // the host waits, so that it does not run too far ahead
};
std::string_view to_string(WaitType type);

struct Wait {
  std::size_t event;
  WaitType type;
  friend bool operator==(const Wait&, const Wait&) = default;
};

// ---- operations ----

enum class OperationKind {
  initialize,  // initial values of my shard, zero for the rest; cold start only
  initialize_scalars,
  cast,              // my master shard, or whole masters, into the parameter dtype
  all_gather,        // parameters from shards
  window,            // the user's
  collective,        // one inside a window, between two stretches of it (CollectiveSpec); a message before or behind it
  prepare_gradient,  // acquires a gradient slot; zero in the padding
  accumulate,        // accumulation (+)= gradient slot
  convert,           // gradient slot into the wire's type
  reduce_scatter,    // my fp32 shard (+)= sum over ranks
  sum_tied,          // my reduced shard += that of the unit's other role, at my place
  hook,              // the user's, on my reduced shard
  all_gather_sum,    // the fp32 sum, from everybody's shards
  sum_of_squares,    // of my reduced shard
  weight,            // what this rank brings to the mean: its micro-batches, a weight, or nothing
  gather_norms,      // everybody's partial norms and weights; along pipeline, of all roles' units
  begin_update,      // norm, clip factor, skip flag, step count
  optimize,      // my masters and states; what is kept of the parameters in 16 bits, where it has the masters' shape;
                 // and the directions of tensors that are seen whole, whose masters wait for `apply`
  redistribute,  // directions to the owners of tensors, or back (WholeGroup)
  transform,     // tensors that this rank owns, by the optimizer
  apply,         // what came back, to my masters; what is kept of the parameters, as by `optimize`
  keep,          // masters and states as they are before an update ahead of the norm
  settle,        // … which is then taken back and made again, unless all was as supposed
  outer_update,  // my shard of the masters, from the replicas' mean and the anchor
  release,       // a slot is given back
  broadcast,     // buffers, from rank 0
  transfer,      // between the device's memory and the host's or the disk
};
std::string_view to_string(OperationKind kind);
constexpr bool is_collective(OperationKind kind) {
  return kind == OperationKind::all_gather || kind == OperationKind::reduce_scatter ||
         kind == OperationKind::all_gather_sum || kind == OperationKind::gather_norms ||
         kind == OperationKind::sum_tied || kind == OperationKind::broadcast || kind == OperationKind::collective ||
         kind == OperationKind::redistribute;
}

inline constexpr std::size_t no_unit = static_cast<std::size_t>(-1);
inline constexpr std::size_t no_collective = static_cast<std::size_t>(-1);
inline constexpr std::size_t no_group = static_cast<std::size_t>(-1);

// The reduction of a bucket, and the gathering of its sums, name several units: pairs of accesses, source and target,
// one for each. `unit` is the first.
struct Operation {
  OperationKind kind;
  StreamId stream;
  std::size_t unit = no_unit;
  std::vector<Access> accesses;
  std::vector<Wait> waits;
  AxisSet group = {};  // of collectives: the ranks that differ along these axes, in the order of MeshShape::index_of;
                       // of sum_tied along pipeline the first and the last
  WindowKind window = WindowKind::forward;  // of kind window
  bool resumes = false;                     // of kind window: one that was open before (WindowUse, or a collective)
  std::size_t collective = no_collective;   // of kind collective: in the list of the unit
  CollectiveKind collective_kind = CollectiveKind::all_gather;  // of kind collective
  std::size_t whole_group = no_group;  // of kinds redistribute and transform: in Plan::whole_groups
  bool add = false;                    // accumulate, reduce_scatter: add to the target instead of replacing it
  bool continues = false;              // reduce_scatter that adds: rank after rank to the target, not the ranks' sum
  std::size_t divisor = 1;   // reduce_scatter: ranks × micro-batches once, in the last reduction of all (the update
                             // puts right what ranks brought other than that); of masters: replicas
  DType wire = DType::fp32;  // reduce_scatter: dtype of what is read

  // The operand of a role, which is read, written or both; throws InternalError where there is none.
  const Access& operand(Role role) const;
  // A redistribution goes to owners, or else back.
  bool goes_to_owners() const { return accesses.back().role == Role::whole; }
  bool passes_message() const { return kind == OperationKind::collective && is_message(collective_kind); }
  // Collectives and casts move from a source to a target, one pair for each unit.
  std::size_t moves() const { return accesses.size() / 2; }
  const Access& source(std::size_t move = 0) const { return accesses[2 * move]; }
  const Access& target(std::size_t move = 0) const { return accesses[2 * move + 1]; }
};

// ---- segments ----

enum class SegmentKind {
  cold,     // once, in finalize()
  refresh,  // after shards of masters or states were written from outside
  only,     // the one micro-batch of a step
  first,    // … of several
  middle,
  last,
  update,
  outer,  // after some updates: the masters of one fragment of the units become the same in all replicas
  evaluation,
  synchronize,  // buffers become rank 0's
};
std::string_view to_string(SegmentKind kind);

struct Segment {
  SegmentKind kind;
  std::vector<Operation> operations;  // in the order of launch, the same on every rank
  std::size_t fragment = 0;           // of kind outer
  std::size_t program = no_program;   // of a micro-batch, an update, an evaluation
};

// A point that waits refer to: the latest completion of one operation. All count as recorded when the plan starts.
struct EventPoint {
  std::size_t segment;
  std::size_t operation;
  friend bool operator==(const EventPoint&, const EventPoint&) = default;
};

struct PlanOptions {
  Strategy strategy = Strategy::fsdp;
  std::optional<Sharding> sharding = std::nullopt;  // instead of the strategy's
  Precision precision = {};
  std::size_t ranks = 1;
  std::size_t replicas = 1;                      // divides ranks: the mesh is then replicate x shard
  std::optional<MeshShape> mesh = std::nullopt;  // else; `ranks` and `replicas` are then not looked at
  // The plan is that of the ranks at this place along the mesh's axis pipeline (roles.hpp).
  std::optional<std::size_t> role = std::nullopt;
  // The most units that any role trains, so that each has as many cells for the norms of all; 0: norms, and what
  // follows from them, are the role's own.
  std::size_t role_units = 0;
  // After so many steps an outer step follows, which averages the replicas' weights; between two of them each replica
  // trains by itself (local SGD, DiLoCo: Douillard et al. 2023). 0: replicas are summed in every step.
  std::size_t outer_every = 0;
  std::size_t outer_fragments = 1;  // runs of units that take turns, each with an outer step of its own every so often
  std::size_t micro_batches = 1;    // of a step of programs that say no number of their own
  // A step has so many granules (granules.hpp), of programs that say no number of their own; micro_batches is then 1,
  // and what a program says counts granules. 0: none.
  std::size_t granules = 0;
  // In a Plan: never automatic; Plan::accumulation() is a program's.
  AccumulationMode accumulation = AccumulationMode::automatic;
  std::size_t prefetch = 1;
  Resharding reshard_after_forward = true;
  bool overlap_reduction = true;
  // Gradients of at most so many bytes, in the wire's type, are reduced in one operation; 0: each unit's alone.
  // Default: 1 MiB; 0 where parameters are sharded, because merging keeps more gradients alive. In a Plan: always set.
  std::optional<Bytes> bucket_cap = std::nullopt;
  bool gradient_hooks = false;  // the user's hook sees every unit's reduced gradient, in fp32
  bool fp32_sums = false;       // reduced gradients are fp32 also where nothing is added: optimizers read nothing else
  Offload offload = {};         // of units that say nothing of their own
  Bytes activations{};          // of the user's block
  Checkpointing checkpointing = Checkpointing::none;
  CollectiveStaging collective_staging = CollectiveStaging::none;  // of the backend
  // Threads of the host share the compute stream's operations, and one more beside them would take a processor away.
  bool threaded_compute = false;
  bool disk_staging = false;  // what comes from the disk passes through the host's memory: of devices but the CPU
  friend bool operator==(const PlanOptions&, const PlanOptions&) = default;
};
MeshShape mesh_of(const PlanOptions& options);  // without the axis along which ranks have other roles
// Over axes of the mesh. Outer steps are not looked at (Plan::sharding()).
Sharding sharding_of(const PlanOptions& options);
// Whether whole sums of micro-batches are what is then reduced in place, and the automatic accumulation mode is local.
bool sums_stay_whole(const PlanOptions& options);

// UnitBuffers is what a unit has, by role.
class UnitBuffers {
 public:
  std::vector<Content> states;
  std::vector<Content> state_slots;  // empty where states stand in the device's memory between updates
  std::vector<Content> directions;   // empty where the optimizer sees no tensor whole
  std::vector<Content> before;       // empty where no update is taken back

  const Content& operator[](Role role) const { return contents_[static_cast<std::size_t>(role)]; }
  Content& operator[](Role role) { return contents_[static_cast<std::size_t>(role)]; }
  // Where operations have the masters; and whether any of it leaves the device's memory between updates.
  Role masters() const { return (*this)[Role::master_slot].exists() ? Role::master_slot : Role::master; }
  bool are_offloaded() const { return !state_slots.empty() || (*this)[Role::master_slot].exists(); }
  bool are_updated_on_host() const { return (*this)[Role::host_gradient].exists(); }
  const Content& of(const Access& access) const {
    if (access.role == Role::state) return states.at(access.state);
    if (access.role == Role::direction) return directions.at(access.state);
    if (access.role == Role::before) return before.at(access.state);
    return access.role == Role::state_slot ? state_slots.at(access.state) : (*this)[access.role];
  }

 private:
  std::array<Content, role_count> contents_;
};

// The steps of a program have these for themselves, so that each counts its own updates, with an optimizer of its own.
struct ProgramBuffers {
  std::size_t scalars = no_buffer;
  std::size_t host_scalars = no_buffer;  // where the host's processors update any of its units
  std::size_t supposed = no_buffer;      // … ahead of the norm
  std::size_t norms = no_buffer;
};

struct Plan {
  PlanOptions options;
  MeshShape mesh;
  std::vector<Program> programs;  // at least one
  std::vector<UnitSpec> units;
  std::vector<UnitLayout> layouts;
  std::vector<StateSpec> optimizer_states;  // of programs that name none of their own

  std::vector<Buffer> buffers;
  std::vector<UnitBuffers> unit_buffers;
  std::vector<ProgramBuffers> program_buffers;
  std::size_t activations = no_buffer;
  std::size_t collected = no_buffer;  // the collective of a window works on it in place; one at a time runs
  std::size_t collected_sums =
      no_buffer;  // a sum that overlaps does on this, so that it may be written before a gather ends
  std::vector<std::vector<std::size_t>> messages;  // by unit and collective: where a message's buffers stand
  std::size_t gather_staging = no_buffer;          // of the communicators that gather, reduce, and serve windows
  std::size_t reduce_staging = no_buffer;
  std::size_t window_staging = no_buffer;
  std::size_t fetch_staging = no_buffer;  // of each direction's transfers with the disk
  std::size_t evict_staging = no_buffer;
  std::size_t checkpoint_staging = no_buffer;
  std::size_t checkpoint_copy = no_buffer;
  std::vector<std::size_t> trainers;          // by unit: the program that trains it, or no_program
  std::vector<std::size_t> norm_columns;      // by unit: its place among those that its program trains, or no_unit
  std::vector<std::size_t> backward_windows;  // by unit: how many of them a micro-batch of that program has
  std::vector<WholeGroup> whole_groups;       // in the order of updates

  std::vector<Segment> segments;
  std::vector<EventPoint> events;

  // ---- axes ----

  // Along these ranks train by themselves between outer steps. Those that differ along the others train together: their
  // gradients are summed in every step, and they share norm, skipping and loss scale.
  AxisSet diverging() const { return options.outer_every > 0 ? mesh.axes() & outer_axes : AxisSet(); }
  bool diverges() const { return options.outer_every > 0; }
  AxisSet training() const { return mesh.axes() - diverging(); }
  std::size_t training_ranks() const { return mesh.size(training()); }
  // Along these ranks have the unit in common; and along these they have other values of it, each place its variant.
  AxisSet common(std::size_t unit) const { return layouts[unit].common(); }
  AxisSet apart(std::size_t unit) const { return units[unit].apart | diverging(); }
  std::size_t variants(std::size_t unit) const { return mesh.size(apart(unit)); }
  std::size_t variant_of(std::size_t unit, std::size_t rank) const {
    return mesh.index_of(apart(unit), mesh.place_of(rank));
  }
  // Whether an element of the whole tensor is the rank's to count: of what is alike on all that have the unit apart,
  // the first one's.
  bool counts(std::size_t unit, std::size_t parameter, std::size_t rank) const {
    return !units[unit].parameters[parameter].is_alike() || variant_of(unit, rank) == 0;
  }
  // Gradients are summed along these, one axis after the other: along those of more than one rank, and the innermost;
  // along none, where no other rank has the unit. Granules are summed along all at once, so that their order is that of
  // ranks.
  std::vector<AxisSet> summed(std::size_t unit) const;
  // Each rank keeps what is sharded over these; of a unit, over those along which gradients are summed.
  Sharding sharding() const;
  Sharding sharding(std::size_t unit) const;
  // A unit's persistent buffers, as far as this rank is the one to initialise them and to give them out, are sharded
  // over these.
  AxisSet own(std::size_t unit) const { return common(unit) - diverging(); }
  AxisSet own(std::size_t unit, const Content& content) const;
  // Returns how many elements a rank has at most of such a content; and whether a parameter has a value of a state.
  std::size_t packed_elements(std::size_t unit, const Content& content) const;
  bool has_value(std::size_t unit, std::size_t parameter, const StateSpec& state) const {
    return !state.elementwise || !units[unit].parameters[parameter].whole;
  }
  // True where windows read what is whole at all times: what is sharded over no axis, or over those of one rank alone
  // where windows read masters. Else it is gathered into slots.
  bool parameters_stay_whole() const;
  bool uses(StreamId stream) const;  // transferring ones, and the host's, only where something is offloaded
  const Content& content(const Access& access) const { return unit_buffers[access.tenant].of(access); }
  // Between its windows of a pass (Resharding) a rank holds a gathered unit sharded over these.
  AxisSet held_between_windows(std::size_t unit) const;
  AxisSet held_between_windows(const Resharding& resharding, AxisSet parameters) const;
  // The rank of the plan's mesh that a rank of the job is, whatever its role.
  std::size_t rank_of(std::size_t job_rank) const {
    return options.role ? mesh.rank_at(options.mesh->place_of(job_rank)) : job_rank;
  }
  std::size_t job_ranks() const { return options.role ? options.mesh->size() : options.ranks; }  // in all roles
  // The inverse of rank_of(), for this role's ranks.
  std::size_t job_rank(std::size_t rank) const {
    if (!options.role) return rank;
    Coordinates place = mesh.place_of(rank);
    place[static_cast<std::size_t>(Axis::pipeline)] = *options.role;
    return options.mesh->rank_at(place);
  }
  // Who takes part in a collective of a window; of a message, which another role has the other side of, none.
  AxisSet group_of(const CollectiveSpec& collective) const { return mesh.group(training() & *collective.axes); }
  // ---- steps ----

  // Sums go on from one granule to the next, and norms are exact.
  bool has_granules() const { return options.granules > 0; }
  // How a program's steps have them, for the rank at this place among the training ones; a total of 0: not at all.
  Granules granules(std::size_t program, std::size_t place = 0) const {
    if (!has_granules()) return {};
    return {programs[program].micro_batches.value_or(options.granules), training_ranks(), place};
  }
  // Returns the micro-batches of a program's step: with granules, its rounds. Where they add up, with one both modes
  // are `reduced`. The divisor is what the last reduction of such a step divides by.
  std::size_t micro_batches(std::size_t program) const {
    if (has_granules()) return granules(program).rounds();
    return programs[program].micro_batches.value_or(options.micro_batches);
  }
  AccumulationMode accumulation(std::size_t program) const {
    return micro_batches(program) == 1 ? AccumulationMode::reduced : options.accumulation;
  }
  std::size_t gradient_divisor(std::size_t program) const {
    return has_granules() ? granules(program).total : training_ranks() * micro_batches(program);
  }
  // The same of a unit: where ranks that work on the same samples have a part of it each, they count once.
  std::size_t gradient_divisor(std::size_t program, std::size_t unit) const {
    if (has_granules()) return granules(program).total;
    return mesh.size(training() - (same_samples - common(unit))) * micro_batches(program);
  }
  const Precision& precision(std::size_t unit) const {
    return units[unit].precision ? *units[unit].precision : options.precision;
  }
  // Whether any of the unit's parameters is trained: it then has gradients, a norm and an update.
  bool trains(std::size_t unit) const { return trainers[unit] != no_program; }
  bool trains(std::size_t unit, std::size_t program) const { return trains(unit) && trainers[unit] == program; }
  std::size_t trained_units(std::size_t program) const;
  // A row of norms has so many cells: this role's begin at the first.
  std::size_t norm_cells(std::size_t program) const {
    return shares_norms() ? options.role_units * roles() : trained_units(program);
  }
  std::size_t first_norm() const { return shares_norms() ? options.role_units * *options.role : 0; }
  bool shares_norms() const { return options.role && options.role_units > 0; }
  std::size_t roles() const { return options.role ? options.mesh->size(Axis::pipeline) : 1; }
  const std::vector<StateSpec>& optimizer_states_of(std::size_t program) const {
    return programs[program].optimizer_states ? *programs[program].optimizer_states : optimizer_states;
  }
  // Returns the states of a unit that is trained.
  const std::vector<StateSpec>& unit_states(std::size_t unit) const {
    return units[unit].optimizer_states ? *units[unit].optimizer_states : optimizer_states_of(trainers[unit]);
  }
  // Names the states of the units that a program trains: each once, its own optimizer's first.
  std::vector<std::string> trained_states(std::size_t program) const;
  const Operation& at(EventPoint point) const { return segments[point.segment].operations[point.operation]; }
  // Finds the segment; of kinds that every program has one of its own of, this program's.
  std::optional<std::size_t> find(SegmentKind kind, std::size_t program = 0) const;
  std::optional<std::size_t> find_outer(std::size_t fragment) const;
  // The outer segment that follows the `step`th update, counted from 1, if one does.
  std::optional<std::size_t> outer_after(std::size_t step) const;
};

// Those that a window of this kind does, as places in the list of its unit, in their order.
std::vector<std::size_t> collectives_in(const UnitSpec& unit, WindowKind window);

// The segments that may follow a segment, of those that the plan has.
std::vector<std::size_t> successors(const Plan& plan, std::size_t segment);

// Returns what a transfer reads from disk or writes there.
Bytes size_on_disk(const Plan& plan, const Operation& transfer);

// "all-gather blocks.3", "reduce-scatter blocks.3 to blocks.1 (3 units)": for errors and drawings.
std::string describe(const Plan& plan, const Operation& operation);
std::string describe(const Plan& plan, EventPoint point);       // with the segment's name
std::string name_of(const Plan& plan, const Segment& segment);  // "update", "outer 1"

// Equal plans have equal hashes; compared across ranks when training starts. FNV-1a over the canonical text (draw.hpp).
std::uint64_t hash(const Plan& plan);

}  // namespace tessera::plan

#pragma GCC visibility pop
