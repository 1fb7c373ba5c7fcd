#include "sparse/prefill_registry.h"

#include "sparse/tri_shape/tri_shape_method.h"
#include "sparse/xattention/xattention_method.h"

namespace spindle::sparse {

std::span<const std::shared_ptr<const PrefillMethod>> PrefillMethods() {
  static const std::shared_ptr<const PrefillMethod> methods[] = {
      std::make_shared<XAttentionMethod>(),
      std::make_shared<TriShapeMethod>(),
  };
  return methods;
}

std::shared_ptr<const PrefillMethod> FindPrefillMethod(std::string_view name) {
  for (const std::shared_ptr<const PrefillMethod>& method : PrefillMethods()) {
    if (method->name() == name) {
      return method;
    }
  }
  return nullptr;
}

}  // namespace spindle::sparse
