#include "engine/api.h"

#include <dlfcn.h>

namespace mxrdma::engine {
namespace {

constexpr int kKnownVersion = 10901;

template <typename Function>
bool find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

Result<std::shared_ptr<const Api>> Api::load(const std::string& libmxnet_path) {
  // Python loads it RTLD_LOCAL, so its symbols are found only through a handle of it. Never closed:
  // operations that are still on the engine call into it until the process ends.
  void* library = dlopen(libmxnet_path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (!library)
    return Status(Code::unsupported,
                  "libmxnet is not loaded from " + libmxnet_path + "; import mxnet first");
  auto api = std::make_shared<Api>();
  const char* missing = nullptr;
  auto need = [&](const char* name, auto* function) {
    if (!find(library, name, function) && !missing) missing = name;
  };
  need("MXEnginePushAsyncND", &api->push_async);
  need("MXGetLastError", &api->last_error);
  need("MXGetVersion", &api->version);
  need("MXShallowCopyNDArray", &api->shallow_copy);
  need("MXNDArrayFree", &api->free_array);
  need("MXNDArrayToDLPack", &api->to_dlpack);
  need("MXNDArrayCallDLPackDeleter", &api->delete_dlpack);
  need("MXNDArrayCreateEx64", &api->create_array);
  need("MXNDArrayGetStorageType", &api->get_storage_type);
  need("MXNDArrayGetDType", &api->get_dtype);
  need("MXNDArrayGetContext", &api->get_context);
  need("MXNDArrayGetShapeEx64", &api->get_shape);
  if (missing)
    return Status(Code::unsupported,
                  libmxnet_path + " has no " + missing + "; mxrdma needs MXNet 1.9.1");
  int version = 0;
  if (api->version(&version) != 0) return api->error("asking MXNet for its version");
  if (version == kKnownVersion) {
    api->known_layout = true;
    find(library, "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv", &api->reorder_in_place);
    find(library, "_ZNK5mxnet7NDArray15Reorder2DefaultEv", &api->reordered_copy);
  }
  return std::shared_ptr<const Api>(api);
}

Status Api::error(const std::string& doing) const {
  return Status(Code::internal, doing + ": " + last_error());
}

}  // namespace mxrdma::engine
