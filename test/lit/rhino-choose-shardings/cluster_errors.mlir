// RUN: not rhino-opt --rhino-choose-shardings --cluster=v100x %s 2>&1 | filecheck %s --check-prefix=UNKNOWN
// RUN: not rhino-opt --rhino-choose-shardings --cluster=%s.toml %s 2>&1 | filecheck %s --check-prefix=MISSING
// RUN: not rhino-opt --rhino-choose-shardings --cluster=cpu8 --mesh=8 %s 2>&1 | filecheck %s --check-prefix=OTHER
// A cluster is a preset's name or a readable file, and the mesh that is asked for has to be the module's.

// UNKNOWN: error: [RHI-CLUSTER-001] got cluster 'v100x', expected a preset's name or the path of a cluster file
// UNKNOWN: note: to fix: did you mean v100x8
// MISSING: error: [RHI-CLUSTER-002] the cluster file cannot be read: No such file or directory
// OTHER: cluster_errors.mlir: error: [RHI-MESH-002] the module has mesh @mesh (x=4), and x=8 was asked for
// OTHER-NEXT: note: to fix: leave the mesh out, or remove the module's shardings first
sdy.mesh @mesh = <["x"=4]>
func.func @main(%x: tensor<16xf32>) -> tensor<16xf32> {
  return %x : tensor<16xf32>
}
