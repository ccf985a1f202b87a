// A device of its own for PyTorch: "toy". Its memory lies on the host and its kernels are the CPU's; what is its own
// is an allocator that counts, streams with numbers, and events whose clock runs as fast as the test says.
#include <ATen/EmptyTensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <chrono>

namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;
constexpr auto kToy = c10::DeviceType::PrivateUse1;
constexpr DeviceIndex kDevices = 2;
constexpr size_t kBlock = 256;  // blocks are multiples of it
constexpr size_t kTotal = size_t{4} << 30;

thread_local DeviceIndex current = 0;
thread_local c10::StreamId streams[kDevices] = {};
double speed = 1.0;     // seconds of an event's clock in a second
double moment_ms = -1;  // the moment that events record; negative: the host's

struct Toy final : c10::DeviceAllocator {
  c10::CachingDeviceAllocator::DeviceStats stats[kDevices];

  static void count(c10::CachingAllocator::StatArray& one, size_t amount, bool more) {
    auto& all = one[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    more ? all.increase(amount) : all.decrease(amount);
  }
  struct Block {
    Toy* owner;
    void* data;
    size_t size;
    DeviceIndex device;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    auto& stats = block->owner->stats[block->device];
    count(stats.allocation, 1, false);
    count(stats.allocated_bytes, block->size, false);
    std::free(block->data);
    delete block;
  }
  c10::DataPtr allocate(size_t asked) override {
    if (asked == 0) return {nullptr, Device(kToy, current)};
    size_t size = (asked + kBlock - 1) / kBlock * kBlock;
    auto& here = stats[current];
    auto used = here.allocated_bytes[0].current;
    TORCH_CHECK_WITH(OutOfMemoryError, used + size <= kTotal, "toy out of memory. Tried to allocate ", size, " bytes.");
    auto* block = new Block{this, std::aligned_alloc(64, size), size, current};
    count(here.allocation, 1, true);
    count(here.allocated_bytes, size, true);
    return {block->data, block, &release, Device(kToy, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t size) const override { std::memcpy(to, from, size); }
  bool initialized() override { return stats[0].allocation[0].allocated + stats[1].allocation[0].allocated > 0; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override { return stats[device]; }
  void resetAccumulatedStats(DeviceIndex) override {}
  void resetPeakStats(DeviceIndex device) override {
    for (auto* one : {&stats[device].allocation, &stats[device].allocated_bytes}) (*one)[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override {
    return {kTotal - stats[device].allocated_bytes[0].current, kTotal};
  }
};
Toy allocator;
REGISTER_ALLOCATOR(kToy, &allocator);

double now_ms() {
  if (moment_ms >= 0) return moment_ms;
  auto since = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::milli>(since).count();
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kToy; }
  Device getDevice() const override { return {kToy, current}; }
  void setDevice(Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(Device device) const noexcept override { current = device.index(); }
  Device exchangeDevice(Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }
  Stream stream(Device device, c10::StreamId id) const { return Stream(Stream::UNSAFE, device, id); }
  Device whole(Device device) const { return device.has_index() ? device : getDevice(); }
  Stream getStream(Device device) const override { return stream(whole(device), streams[whole(device).index()]); }
  Stream getDefaultStream(Device device) const override { return stream(whole(device), 0); }
  Stream getNewStream(Device device, int) const override {
    static c10::StreamId made = 0;
    return stream(whole(device), ++made);
  }
  Stream exchangeStream(Stream next) const override {
    auto before = getStream(next.device());
    streams[next.device_index()] = next.id();
    return before;
  }
  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new double;
    *static_cast<double*>(*event) = now_ms();
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override { delete static_cast<double*>(event); }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  double elapsedTime(void* start, void* end, const DeviceIndex) const override {
    return (*static_cast<double*>(end) - *static_cast<double*>(start)) * speed;
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return kDevices; }
  DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(DeviceIndex device) const override { current = device; }
  DeviceIndex exchangeDevice(DeviceIndex device) const override { return std::exchange(current, device); }
  DeviceIndex maybeExchangeDevice(DeviceIndex device) const override { return std::exchange(current, device); }
};

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(Device(kToy)));
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}
at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(Device(kToy)));
  return at::detail::empty_strided_generic(size, stride, &allocator,
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}
at::Tensor on_host(const at::Tensor& one) {  // the same memory, seen as a CPU's
  auto options = one.options().device(at::kCPU);
  return at::from_blob(one.data_ptr(), one.sizes(), one.strides(), options);
}
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  auto source = from.is_cpu() ? from : on_host(from);
  auto target = to.is_cpu() ? to : on_host(to);
  target.copy_(source);
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}
const at::Tensor& resize(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = self.unsafeGetTensorImpl();
  auto needed = c10::multiply_integers(size) * self.element_size();
  if (self.storage().nbytes() < needed) {
    auto block = allocator.allocate(needed);
    std::memcpy(block.get(), self.storage().data(), self.storage().nbytes());
    self.storage().set_data_ptr_noswap(std::move(block));
    self.storage().set_nbytes(needed);
  }
  impl->set_sizes_contiguous(size);
  return self;
}
at::Scalar local_scalar(const at::Tensor& self) { return on_host(self).item(); }
void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", &at::native::set_);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY(toy, m) {
  m.def("set_speed(float speed) -> ()", [](double value) { speed = value; });
  m.def("set_moment(float ms) -> ()", [](double value) { moment_ms = value; });
}
struct Registered {
  Registered() { at::RegisterPrivateUse1HooksInterface(new Hooks); }
} registered;

}  // namespace
